"""
One run whose roles are services: of a real supervisord, or of `unit_manager` in place of systemd.

Both take the files that `asyncrl services install` writes for this machine, unchanged.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from asyncrl.records.run_directory import RunDirectory
from tests.conf.unit_manager import Service, Target, Unit

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
ROLES = ("broker", "reward", "trainer", "rollout")
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
LOOK_S = 0.05
LONGEST_START_S = 4.0
"""A start takes about this long: a second kill within this time often hits it."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ManagedRun(ABC):
    """
    A run under a service manager.

    Args:
        folder: Empty folder for the run, its secret and the service files.
        run_file: Run file; every path in it is absolute.
        options: Further options of `asyncrl services install`.
    """

    manager: str

    def __init__(self, folder: Path, run_file: Path, *options: str) -> None:
        self.folder = folder
        self.directory = RunDirectory(folder / "runs" / "live")
        self._run_file = run_file
        self._files = folder / "files"
        self._port = free_port()
        self.install(*options)

    def install(self, *options: str) -> str:
        """Run `asyncrl services install`; returns its output."""
        command = [sys.executable, "-m", "asyncrl", "services", "install", f"--{self.manager}"]
        command += ["--config", str(self._run_file), "--run-dir", str(self.directory.path), "--to", str(self._files)]
        command += ["--broker", f"tcp://127.0.0.1:{self._port}", *options]
        environment = {**os.environ, **ENVIRONMENT}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @abstractmethod
    def start(self) -> None:
        """Start every role."""

    @abstractmethod
    def end(self) -> None:
        """Stop every role, and the manager."""

    @abstractmethod
    def restart(self, role: str) -> None:
        """SIGTERM, wait for the end, and start again."""

    @abstractmethod
    def pid(self, role: str) -> int | None:
        """Id of the main process; None while there is none."""

    @abstractmethod
    def is_down(self, role: str) -> bool:
        """True if the role has ended, and will not be started again."""

    @abstractmethod
    def is_at_rest(self) -> bool:
        """True if every role has ended, and will not be started again."""

    @abstractmethod
    def describe(self) -> str:
        """States and last lines of the logs, for the message of a failed test."""

    def kill(self, role: str, number: signal.Signals = signal.SIGKILL) -> bool:
        """Send a signal to the main process of a role; False if there is none at the moment."""
        if (pid := self.pid(role)) is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def steps_done(self) -> int:
        return len(self.directory.read_metrics()) if self.directory.metrics.exists() else 0

    def until(self, condition: Callable[[], bool], seconds: float = 300.0) -> None:
        deadline_s = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline_s:
                raise AssertionError(
                    f"nothing happens for {seconds:g} s at step {self.steps_done()}\n{self.describe()}"
                )
            time.sleep(LOOK_S)

    def until_steps(self, steps: int) -> None:
        """Wait until ``steps`` more steps are done."""
        wanted = self.steps_done() + steps
        self.until(lambda: self.steps_done() >= wanted)

    def until_complete(self, seconds: float = 600.0) -> None:
        """Wait until the run has ended, and every role with it."""
        self.until(lambda: self.is_at_rest() and self.directory.summary.exists(), seconds)


class UnderSystemd(ManagedRun):
    """The units of systemd, run by `unit_manager`; restarts come ``restart_s`` seconds after an end."""

    manager = "systemd"
    restart_s = 0.1

    def __init__(self, folder: Path, run_file: Path, *options: str) -> None:
        super().__init__(folder, run_file, *options)
        self.target = Target({role: self._service(role) for role in ROLES})

    def start(self) -> None:
        self.target.start()

    def end(self) -> None:
        self.target.stop()
        for service in self.target.services.values():
            service.forget()

    def restart(self, role: str) -> None:
        self.target[role].restart()

    def pid(self, role: str) -> int | None:
        return self.target[role].main_pid

    def is_down(self, role: str) -> bool:
        return self.target[role].state in ("inactive", "failed")

    def is_at_rest(self) -> bool:
        return set(self.target.states().values()) <= {"inactive", "failed"}

    def describe(self) -> str:
        services = self.target.services
        return "\n".join(
            f"{role}: {it.state} {it.results[-5:]} {it.status}\n{it.log()}" for role, it in services.items()
        )

    def _service(self, role: str) -> Service:
        name = "asyncrl-broker.service" if role == "broker" else f"asyncrl@{role}.service"
        environment = {"PYTHONPATH": str(ROOT)}
        return Service(Unit(self._files, name), self.folder / f"{role}.log", environment, restart_s=self.restart_s)


class UnderSupervisord(ManagedRun):
    """A real supervisord."""

    manager = "supervisord"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [BIN / "supervisord", "-c", self._files / "asyncrl.conf"],
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.until(lambda: "RUNNING" in self.control("status"))

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(180)

    def restart(self, role: str) -> None:
        self.control("restart", role)

    def pid(self, role: str) -> int | None:
        text = self.control("pid", role).strip()
        return int(text) if text.isdecimal() and text != "0" else None

    def is_down(self, role: str) -> bool:
        return self.control("status", role).split()[1:2] == ["EXITED"]

    def is_at_rest(self) -> bool:
        states = [line.split()[1] for line in self.control("status").splitlines() if len(line.split()) > 1]
        return len(states) == len(ROLES) and not {"RUNNING", "STARTING", "BACKOFF", "STOPPING"} & set(states)

    def describe(self) -> str:
        logs = sorted(self.folder.glob("runs/live/logs/*.log"))
        tails = [f"{path.name}: {line}" for path in logs for line in path.read_text().splitlines()[-12:]]
        return "\n".join([self.control("status"), *tails])

    def control(self, *arguments: str) -> str:
        command = [str(BIN / "supervisorctl"), "-c", str(self._files / "asyncrl.conf"), *arguments]
        return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False).stdout


MANAGERS: dict[str, type[ManagedRun]] = {"systemd": UnderSystemd, "supervisord": UnderSupervisord}


def kill_at_random(run: ManagedRun, kills: int, seed: int, every_s: float) -> Counter[str]:
    """
    Send SIGKILL to ``kills`` processes: one or two roles at once, at random times, every third time again while they
    start. Returns the number of kills of each role, with ``, starting`` for those of starting processes.
    """
    chance, done = random.Random(seed), Counter[str]()
    while done.total() < kills:
        if chance.random() < 1 / 2:
            run.until_steps(1)  # Otherwise a busy machine would see kills of starting processes only.
        time.sleep(chance.expovariate(1 / every_s))
        victims = chance.sample(ROLES, chance.choice((1, 1, 2)))
        _kill(run, victims, done, "")
        if chance.random() < 1 / 3:
            time.sleep(chance.uniform(0.1, LONGEST_START_S))
            _kill(run, victims, done, ", starting")
    return done


def _kill(run: ManagedRun, victims: list[str], done: Counter[str], when: str) -> None:
    assert not run.directory.summary.exists(), "the run ended before all kills: give it more steps"
    done.update(f"{role}{when}" for role in victims if run.kill(role))
