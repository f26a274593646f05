"""
Runs unit files as systemd does, without systemd: for tests and benches of the shipped units on any machine.

    start ─▶ starting ─READY=1─▶ running ─end of the main process─▶ [Restart=?] ─▶ starting, after RestartSec
                │ TimeoutStartSec    │ WatchdogSec: SIGABRT              └─▶ inactive | failed
                └────────────────────┴─ stop: SIGTERM, then TimeoutStopSec: SIGKILL ─▶ inactive

As strict as systemd: a service that never says READY=1 fails, also if it exits with 0; a report of a child is ignored
(NotifyAccess=main); the whole control group is killed with the main process; the environment is empty but for what the
unit sets. INVOCATION_ID, which every process inherits, takes the place of the control group. Sandboxing and resource
limits are not emulated, except that TMPDIR stands for PrivateTmp.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from pathlib import Path

SCM_CREDENTIALS = getattr(socket, "SCM_CREDENTIALS", 2)
LOOK_S = 0.05
UNITS_OF_TIME = {"": 1.0, "s": 1.0, "sec": 1.0, "ms": 0.001, "min": 60.0, "h": 3600.0}
CLEAN_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)


class Unit:
    """The settings of one service: its file or its template's, with drop-ins and specifiers filled in."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        stem, at, instance = name.removesuffix(".service").partition("@")
        self._specifiers = {"%i": instance, "%H": socket.gethostname(), "%C": str(folder / "cache"), "%%": "%"}
        file = folder / (f"{stem}@.service" if at else name)
        drop_ins = sorted({d.name: d for f in (file, folder / name) for d in Path(f"{f}.d").glob("*.conf")}.items())
        self._settings: dict[str, list[str]] = {}
        for path in (file, *(path for _, path in drop_ins)):
            self._read(path.read_text())

    def _read(self, text: str) -> None:
        for line in text.replace("\\\n", " ").splitlines():
            if line.strip() and line[0] not in "#;[":
                key, _, value = line.partition("=")
                value = re.sub(r"%.", lambda match: self._specifiers[match[0]], value.strip())
                self._settings.setdefault(key.strip(), []).append(value)

    def all(self, key: str) -> list[str]:
        return self._settings.get(key, [])

    def set(self, key: str, value: str) -> None:
        self._settings[key] = [value]

    def get(self, key: str, default: str = "") -> str:
        return (self.all(key) or [default])[-1]

    def seconds(self, key: str, default: float) -> float:
        if not (match := re.fullmatch(r"([0-9.]+) ?([a-z]*)", self.get(key, f"{default}s"))):
            raise ValueError(f"{self.name}: {key}={self.get(key)} is no time")
        return float(match[1]) * UNITS_OF_TIME[match[2]]

    def environment(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for assignment in (part for line in self.all("Environment") for part in shlex.split(line)):
            key, _, value = assignment.partition("=")
            found[key] = value
        for file in self.all("EnvironmentFile"):
            path = Path(file.removeprefix("-"))
            if path.exists() or not file.startswith("-"):
                found |= dict(line.split("=", 1) for line in path.read_text().splitlines() if line[:1] not in ("", "#"))
        return found

    def command(self, environment: Mapping[str, str]) -> list[str]:
        """Words of ExecStart; ``$NAME`` as a word of its own is split into words, ``${NAME}`` is not."""
        (line,) = self.all("ExecStart")
        words: list[str] = []
        for word in shlex.split(line):
            if match := re.fullmatch(r"\$([A-Z_]+)", word):
                words += environment.get(match[1], "").split()
            else:
                words.append(re.sub(r"\$\{([A-Z_]+)\}", lambda found: environment.get(found[1], ""), word))
        return words


class Service:
    """One service, supervised by a thread of its own."""

    def __init__(
        self, unit: Unit, log: Path, environment: Mapping[str, str] | None = None, *, restart_s: float | None = None
    ) -> None:
        self.unit = unit
        self.state = "inactive"
        """inactive, starting, running, stopping, restarting or failed."""
        self.result = ""
        """Cause of the last end: success, exit-code N, signal N, timeout, watchdog, protocol or start-limit-hit."""
        self.status = ""
        self._end = ""
        """Exit code, or name of the signal, of the last end."""
        self.starts = 0
        self.results: list[str] = []
        self.foreign_reports = 0
        """Reports of processes other than the main one."""
        self._log = log
        self._environment = dict(environment or {})
        self._runtime = Path(tempfile.mkdtemp(prefix="run-"))  # short: it holds sockets
        self._restart_s = unit.seconds("RestartSec", 0.1) if restart_s is None else restart_s
        self._recent: deque[float] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._invocation = ""
        self._stop = threading.Event()
        self._thread = threading.Thread()

    # ── systemctl ───────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        if self._thread.is_alive():
            return
        self._stop.clear()
        self.state = "starting"
        self._thread = threading.Thread(target=self._supervise, name=self.unit.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until it has."""
        self._stop.set()
        self._thread.join()

    def forget(self) -> None:
        """Remove what is left of a stopped service."""
        shutil.rmtree(self._runtime)

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> bool:
        """Send a signal to the main process; False if there is none."""
        process = self._process
        if process is None or process.poll() is not None:
            return False
        process.send_signal(number)
        return True

    @property
    def main_pid(self) -> int | None:
        return self._process.pid if self._process else None

    def until(self, *states: str, seconds: float = 60.0) -> None:
        deadline_s = time.monotonic() + seconds
        while self.state not in states:
            if time.monotonic() > deadline_s:
                raise AssertionError(f"{self.unit.name} is {self.state} ({self.result}), not {states}: {self.log()}")
            time.sleep(LOOK_S)

    def log(self, lines: int = 15) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:]) if self._log.exists() else ""

    def processes(self) -> list[int]:
        """Every process of the control group."""
        mark, found = f"INVOCATION_ID={self._invocation}".encode(), []
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if path.name.isdecimal() and mark in Path(path, "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
        return found

    # ── the manager ─────────────────────────────────────────────────────────────────────────

    def _supervise(self) -> None:
        while True:
            if self._is_over_limit():
                self.result, self.state = "start-limit-hit", "failed"
                return
            self.state = "starting"
            with tempfile.TemporaryDirectory(prefix="unit-") as folder:
                self.result = self._run_once(Path(folder))
            self.results.append(self.result)
            if self._stop.is_set() or not self._shall_restart():
                self.state = "inactive" if self.result == "success" or self._stop.is_set() else "failed"
                return
            self.state = "restarting"
            if self._stop.wait(self._restart_s):
                self.state = "inactive"
                return

    def _is_over_limit(self) -> bool:
        interval_s, burst = self.unit.seconds("StartLimitIntervalSec", 10), int(self.unit.get("StartLimitBurst", "5"))
        now_s = time.monotonic()
        while self._recent and now_s - self._recent[0] > interval_s:
            self._recent.popleft()
        self._recent.append(now_s)
        return bool(interval_s) and len(self._recent) > burst

    def _shall_restart(self) -> bool:
        policy = self.unit.get("Restart", "no")
        if self._end in self.unit.get("RestartPreventExitStatus").split():
            return False
        if self._end in self.unit.get("RestartForceExitStatus").split():
            return True
        return policy == "always" or (policy == "on-failure" and self.result != "success")

    def _run_once(self, folder: Path) -> str:
        """Start the main process and wait for its end; returns the result."""
        self._invocation = uuid.uuid4().hex
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(str(folder / "notify"))
            notify.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            notify.settimeout(LOOK_S)
            self._spawn(folder)
            result = self._attend(notify)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return result

    def _spawn(self, folder: Path) -> None:
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), "USER": self.unit.get("User")}
        environment |= self._environment | self.unit.environment()
        environment |= {"NOTIFY_SOCKET": str(folder / "notify"), "INVOCATION_ID": self._invocation}
        if self.unit.get("PrivateTmp") == "yes":
            environment["TMPDIR"] = str(folder)
        if name := self.unit.get("RuntimeDirectory"):
            environment["RUNTIME_DIRECTORY"] = str(self._runtime / name)
            (self._runtime / name).mkdir(mode=0o700, exist_ok=True)
        if watchdog_s := self.unit.seconds("WatchdogSec", 0):
            environment["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        for credential in self.unit.all("LoadCredential"):
            name, _, source = credential.partition(":")
            shutil.copyfile(source, folder / name)
            (folder / name).chmod(0o400)
            environment["CREDENTIALS_DIRECTORY"] = str(folder)
        self.starts += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.unit.command(environment),
                cwd=self.unit.get("WorkingDirectory", "/"),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _attend(self, notify: socket.socket) -> str:
        process = self._process
        assert process is not None
        watchdog_s = self.unit.seconds("WatchdogSec", 0)
        now_s = time.monotonic()
        deadline_s = now_s + self.unit.seconds("TimeoutStartSec", 90)
        fed_s, failure = now_s, ""
        while True:
            ended = process.poll() is not None  # looked at first: a report sent before the end is still read
            lines = self._reports(notify, process.pid)
            now_s = time.monotonic()
            for line in lines:
                key, _, value = line.partition("=")
                if key == "READY" and self.state == "starting":
                    self.state, fed_s = "running", now_s
                elif key == "WATCHDOG":
                    fed_s = now_s
                elif key == "EXTEND_TIMEOUT_USEC":
                    deadline_s = max(deadline_s, now_s + int(value) / 1e6)
                elif key == "STATUS":
                    self.status = value
            if ended:
                return failure or self._result(process.returncode)
            if self._stop.is_set() and self.state in ("starting", "running"):
                self.state = "stopping"
                process.terminate()
                deadline_s = now_s + self.unit.seconds("TimeoutStopSec", 90)
            if self.state == "running" and watchdog_s and now_s - fed_s > watchdog_s:
                failure, self.state = "watchdog", "stopping"
                process.send_signal(signal.SIGABRT)
                deadline_s = now_s + self.unit.seconds("TimeoutStopSec", 90)
            elif self.state != "running" and now_s > deadline_s:
                failure = failure or "timeout"
                process.kill()

    def _reports(self, notify: socket.socket, main_pid: int) -> list[str]:
        """Lines of one report of the main process, if there is one."""
        try:
            data, ancillary, _, _ = notify.recvmsg(4096, socket.CMSG_SPACE(struct.calcsize("3i")))
        except TimeoutError:
            return []
        (credentials,) = [content for _, kind, content in ancillary if kind == SCM_CREDENTIALS]
        pid, _, _ = struct.unpack("3i", credentials)
        if pid != main_pid:
            self.foreign_reports += 1
            return []
        return data.decode().splitlines()

    def _result(self, code: int) -> str:
        self._end = str(code) if code >= 0 else signal.Signals(-code).name
        if code < 0 and -code not in CLEAN_SIGNALS:
            return f"signal {-code}"
        if code > 0 and self._end not in self.unit.get("SuccessExitStatus").split():
            return f"exit-code {code}"
        return "protocol" if self.state == "starting" and self.unit.get("Type") == "notify" else "success"


class Target:
    """Several services, in the order in which they are started; they are stopped in reverse."""

    def __init__(self, services: Mapping[str, Service]) -> None:
        self.services = dict(services)

    def __getitem__(self, name: str) -> Service:
        return self.services[name]

    def start(self) -> None:
        for service in self.services.values():
            service.start()

    def stop(self) -> None:
        for service in reversed(self.services.values()):
            service.stop()

    def states(self) -> dict[str, str]:
        return {name: service.state for name, service in self.services.items()}
