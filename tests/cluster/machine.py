"""A machine of a `Network`: processes, host name, addresses and disk of its own, which it shares with no other."""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from tests.cluster.line import Conditions
from tests.cluster.namespace import ROOT, Namespace, Process, python, run

HOME = "/root"
KEPT = {str(Path(path).resolve()) for path in (ROOT, sys.prefix, sys.base_prefix)}
"""Folders of the host that machines can read: this repository and its Python."""
BIN = Path(sys.executable).parent
ENVIRONMENT = {
    "HOME": HOME,
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "PATH": f"{BIN}:{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
}


class Machine:
    """
    A machine that can be switched on and off, and cut off from the others.

    Args:
        name: Host name; at most 11 characters, because its interfaces are named after it.
        number: Last part of its addresses 10.77.0.N and fd77::N, in hexadecimal digits for IPv6.
        folder: Where its disk and the logs of `start` are.
        conditions: Quality of its line; None for a plain cable.
    """

    def __init__(
        self, name: str, number: int, folder: Path, switch: Namespace, conditions: Conditions | None = None
    ) -> None:
        self.name = name
        self.ipv4 = f"10.77.0.{number}"
        self.ipv6 = f"fd77::{number:x}"
        self._mac = f"02:77:00:00:00:{number:02x}"  # The same after every start, as the others remember it.
        self.disk = folder / "disk"
        self.logs = folder / "logs"
        self._number = number
        self._switch = switch
        self._conditions = conditions
        self._namespace: Namespace | None = None
        self._wire: Process | None = None
        self._started: list[Process] = []
        (self.disk / "etc").mkdir(parents=True)
        (self.disk / "etc/hostname").write_text(f"{name}\n")

    # ── power and cable ─────────────────────────────────────────────────────────────────────

    def boot(self) -> None:
        """Switch it on: nothing runs, and the disk is as it was left."""
        assert self._namespace is None, f"{self.name} is on"
        command = python("tests.cluster.boot", str(self.disk), self.name, *sorted(KEPT))
        self._namespace = Namespace(self.logs / "boot.log", command)
        if self._conditions is None:
            self._lay_cable()
        else:
            self._lay_wire(self._conditions)
        ip = self._namespace.ip
        ip("link", "set", "eth0", "address", self._mac, "up")
        ip("addr", "add", f"{self.ipv4}/24", "dev", "eth0")
        ip(
            "addr", "add", f"{self.ipv6}/64", "dev", "eth0", "nodad"
        )  # Its duplicates would be found only a second later.
        self._switch.ip("link", "set", "dev", self.name, "up")
        self.heal()

    def power_off(self) -> None:
        """Kill every process at once. No other machine hears of it: the cable is cut before the processes end."""
        if self._namespace is None:
            return
        if self._wire is None:
            self._switch.ip("link", "del", "dev", self.name)
        else:
            self._wire.finish()
            self._wire = None
        self._namespace.kill()
        self._namespace = None
        for process in self._started:
            process.end()
        self._started.clear()

    def partition(self) -> None:
        """Stop every frame from and to this machine, which cannot see it on its own interface."""
        self._switch.ip("link", "set", "dev", self.name, "nomaster")

    def heal(self) -> None:
        """End a partition."""
        self._switch.ip("link", "set", "dev", self.name, "master", "bridge")

    @property
    def is_on(self) -> bool:
        return self._namespace is not None

    def frames_lost(self) -> int:
        """Frames that its line has lost, without those for which the queue had no room; known once it is off."""
        counts = re.findall(r"lost (\d+)", (self.logs / "wire.log").read_text())
        return sum(map(int, counts))

    # ── commands and files ──────────────────────────────────────────────────────────────────

    def run(self, *command: str, seconds: float = 60.0, folder: str = HOME) -> str:
        """Standard output of a command; raises `CommandFailed`."""
        return run(self._entered(command, {}, folder), seconds)

    def prefix(self) -> str:
        """Words before a command that run it here, as ``ssh HOST`` does."""
        return shlex.join(self._entered((), {}, HOME))

    def start(
        self, log: str, *command: str, environment: Mapping[str, str] | None = None, folder: str = HOME
    ) -> Process:
        """Start a command whose output goes to the file ``log`` in `logs`."""
        process = Process(self._entered(command, environment or {}, folder), self.logs / log)
        self._started.append(process)
        return process

    def path(self, path: str) -> Path:
        """A file of this machine, as seen from outside: one below a folder that machines have for themselves."""
        return self.disk / path.lstrip("/")

    def write_hosts(self, machines: Iterable["Machine"]) -> None:
        """Write /etc/hosts as Debian does: the own name is a loopback address, every other name a real one."""
        others = [f"{machine.ipv4} {machine.name}" for machine in machines if machine is not self]
        lines = ["127.0.0.1 localhost", f"127.0.1.1 {self.name}", *others]
        (self.disk / "etc/hosts").write_text("\n".join(lines) + "\n")

    def _entered(self, command: Sequence[str], environment: Mapping[str, str], folder: str) -> list[str]:
        assert self._namespace is not None, f"{self.name} is off"
        return self._namespace.entered(command, {**ENVIRONMENT, **environment}, folder)

    # ── lines ───────────────────────────────────────────────────────────────────────────────

    def _lay_cable(self) -> None:
        assert self._namespace is not None
        far = ["peer", "name", "eth0", "netns", str(self._namespace.pid)]
        self._switch.ip("link", "add", "name", self.name, "type", "veth", *far)

    def _lay_wire(self, conditions: Conditions) -> None:
        assert self._namespace is not None
        far = f"{self.name}-far"
        wire = python("tests.cluster.wire", self.name, far, msgspec.json.encode(conditions).decode(), str(self._number))
        self._wire = Process(self._switch.entered(wire, ENVIRONMENT, str(ROOT)), self.logs / "wire.log", owned=True)
        self._wire.until_ready()
        self._switch.ip("link", "set", "dev", far, "netns", str(self._namespace.pid), "name", "eth0")
