"""
A network of machines, as namespaces of one host joined by a bridge in a namespace of its own.

    ┌ machine ─┐ eth0        ┌ switch ──────────────┐        eth0 ┌ machine ─┐
    │          │─── veth ────│─┐                  ┌─│── TAP ─ wire ─ TAP ─│   │
    └──────────┘             │ └───── bridge ─────┘ │  delay, loss, rate    └───┘
                             └──────────────────────┘

Nothing of it is seen outside: no interface, no address, no mount. Everything ends with the process that made it, also
after SIGKILL, because namespaces vanish with their last process, and the first one of each ends with its owner.

Needs root, or the capability to create namespaces; a `Line` needs /dev/net/tun as well.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from tests.cluster.line import Conditions
from tests.cluster.machine import Machine
from tests.cluster.namespace import UNSHARE, CommandFailed, Namespace, run

PREFIX = "asyncrl-cluster-"
BRIDGE = "bridge"


class Network:
    """Context manager: a switch and the machines on it, in a folder that is removed with them."""

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self.machines: dict[str, Machine] = {}
        self._switch: Namespace | None = None

    def __enter__(self) -> "Network":
        self._switch = Namespace(self.folder / "switch.log", ["sh", "-c", "echo ready; exec cat"])
        self._switch.ip("link", "add", BRIDGE, "type", "bridge", "mcast_snooping", "0")
        self._switch.ip("link", "set", BRIDGE, "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for machine in self.machines.values():
            machine.power_off()
        if self._switch is not None:
            self._switch.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, *names: str, conditions: Conditions | None = None) -> list[Machine]:
        """
        New machines, switched off.

        Args:
            conditions: Quality of the lines to these machines; None for plain cables.
        """
        if self._switch is None:
            raise RuntimeError("the network has no switch outside of its `with` block")
        added = []
        for name in names:
            number = len(self.machines) + 1
            self.machines[name] = Machine(name, number, self.folder / name, self._switch, conditions)
            added.append(self.machines[name])
        return added

    def boot(self) -> None:
        """Switch all machines on; each knows the names of all."""
        for machine in self.machines.values():
            machine.write_hosts(self.machines.values())
            machine.boot()

    @contextmanager
    def separated(self, *names: str) -> Iterator[None]:
        """Cut the paths between these machines, and no other path, until the end of the block."""
        for name in names:
            self._isolate(name, "on")
        try:
            yield
        finally:
            for name in names:
                self._isolate(name, "off")

    def _isolate(self, name: str, state: str) -> None:
        """The bridge carries no frame from one isolated machine to another."""
        assert self._switch is not None
        self._switch.ip("link", "set", "dev", name, "type", "bridge_slave", "isolated", state)


def remove_abandoned(parent: Path) -> None:
    """Remove the folders of networks whose process has ended without doing it."""
    for folder in parent.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def obstacle(*, lines: bool = False) -> str:
    """Reason why this host cannot have such a network, with ``lines`` of conditions too; empty if it can."""
    missing = [tool for tool in ("ip", "unshare", "nsenter", "mount") if shutil.which(tool) is None]
    if missing:
        return f"needs the commands {', '.join(missing)}"
    try:
        run([*UNSHARE, "ip", "link", "add", BRIDGE, "type", "bridge"])
        if lines:
            run(["unshare", "--net", "ip", "tuntap", "add", "tap0", "mode", "tap"])
    except CommandFailed as error:
        return f"cannot create namespaces, bridges or TAP interfaces: {error}"
    return ""
