"""
A run on the machines of a network, set up as an operator does it: keys, service files, and a supervisord on each.

Every command runs on the machine that it is for. What an operator copies between machines is copied: the task to all of
them, and to each its key. Nothing else is shared.
"""

import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from asyncrl.records.run_directory import RunDirectory, RunSummary
from tests.cluster import attendance
from tests.cluster.machine import BIN, Machine
from tests.cluster.namespace import CommandFailed
from tests.cluster.network import Network
from tests.cluster.placement import Layout, Placement

TASK = PurePosixPath("/root/task")
RUN_FILE = TASK / "run.toml"
RUN = PurePosixPath("/root/runs/live")
KEYS = PurePosixPath("/root/keys")
KEY = PurePosixPath("/root/node.key")
SERVICES = PurePosixPath("/root/services")
PORT = 5570
LOOK_S = 0.2
AT_WORK = {"RUNNING", "STARTING", "BACKOFF", "STOPPING"}
"""States in which supervisord has a process, or will start one."""


class Deployment:
    """
    A run whose roles are services on several machines.

    Args:
        network: Switched on by `start`.
        task: Folder with the model, the data and the run file ``run.toml``, whose paths start with ``/root/task``.
    """

    def __init__(self, network: Network, layout: Layout, task: Path) -> None:
        self.layout = layout
        self._network = network
        for placement in layout.placements:
            (machine,) = network.add(placement.machine, conditions=placement.conditions)
            shutil.copytree(task, machine.path(str(TASK)))
        self.directory = RunDirectory(self.broker.path(str(RUN)))

    def machine(self, name: str) -> Machine:
        return self._network.machines[name]

    @property
    def broker(self) -> Machine:
        return self.machine(self.layout.broker)

    # ── setting up ──────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Switch the machines on, install keys and services, and start them."""
        self._network.boot()
        if self._has_keys:
            self._make_keys()
        for placement in self.layout.placements:
            self._install(placement)
        for name in self.layout.machines:
            self.start_services(name)

    @property
    def _has_keys(self) -> bool:
        """True if links leave a machine."""
        return len(self.layout.placements) > 1

    @property
    def _address(self) -> str:
        if not self._has_keys:
            return f"tcp://127.0.0.1:{PORT}"
        return f"tcp://{self.broker.ipv4 if self.layout.ip == 4 else f'[{self.broker.ipv6}]'}:{PORT}"

    def _make_keys(self) -> None:
        self._asyncrl(self.broker, "keys", "init", "--keys", str(KEYS))
        for placement in self.layout.placements[1:]:
            roles = [word for role in placement.roles for word in ("--role", role)]
            self._asyncrl(self.broker, "keys", "add", placement.machine, *roles, "--keys", str(KEYS))
            made = self.broker.path(str(KEYS / "nodes" / f"{placement.machine}.key"))
            shutil.copy(made, self.machine(placement.machine).path(str(KEY)))  # with its mode

    def _install(self, placement: Placement) -> None:
        options = ["--supervisord", "--run-dir", str(RUN), "--to", str(SERVICES), "--broker", self._address]
        options += ["--roles", ",".join(placement.roles), "--replicas", str(placement.replicas)]
        is_broker = "broker" in placement.roles
        options += ["--config", str(RUN_FILE)] if is_broker else []
        if self._has_keys:
            options += ["--keys", str(KEYS)] if is_broker else ["--key", str(KEY)]
        self._asyncrl(self.machine(placement.machine), "services", "install", *options)

    # ── operating ───────────────────────────────────────────────────────────────────────────

    def start_services(self, name: str) -> None:
        """Start supervisord on a machine that has just been switched on."""
        command = [str(BIN / "supervisord"), "-c", str(SERVICES / "asyncrl.conf")]
        self.machine(name).start("supervisord.log", *command)

    def power_off(self, name: str) -> None:
        """Kill every process of a machine, supervisord included; see `Machine.power_off`."""
        self.machine(name).power_off()

    def power_on(self, name: str) -> None:
        self.machine(name).boot()
        self.start_services(name)

    def control(self, name: str, *arguments: str) -> str:
        """Output of supervisorctl on a machine; raises `CommandFailed` for a command other than ``status``."""
        command = [str(BIN / "supervisorctl"), "-c", str(SERVICES / "asyncrl.conf"), *arguments]
        if arguments == ("status",):  # It fails if any program is not running.
            command = ["sh", "-c", '"$@" || true', "sh", *command]
        return self.machine(name).run(*command, seconds=300)

    def restart(self, name: str, role: str = "all") -> None:
        """SIGTERM to the services of a machine; when they have drained, start them again."""
        self.control(name, "restart", role)

    def separated(self, *names: str) -> AbstractContextManager[None]:
        return self._network.separated(*names)

    # ── looking ─────────────────────────────────────────────────────────────────────────────

    def events(self) -> list[dict[str, Any]]:
        return self.directory.read_events() if self.directory.events.exists() else []

    def nodes_of(self, name: str) -> frozenset[str]:
        """Nodes at work that must join again when a machine has been restarted: all of them after the broker's."""
        nodes = attendance.present(self.events())
        return nodes if name == self.layout.broker else frozenset(node for node in nodes if name in node)

    def steps_done(self) -> int:
        return len(self.directory.read_metrics()) if self.directory.metrics.exists() else 0

    def summary(self) -> RunSummary | None:
        return self.directory.read_summary()

    def audit(self) -> dict[str, Any]:
        """Output of `asyncrl audit` on the broker's machine; raises `CommandFailed` if it finds a problem."""
        output = self._asyncrl(self.broker, "audit", str(RUN), "--json", seconds=300)
        return msgspec.json.decode(output, type=dict[str, Any])

    def is_at_rest(self) -> bool:
        """True if every service has ended for good."""
        return not any(AT_WORK & set(self.control(name, "status").split()) for name in self.layout.machines)

    def until(self, condition: Callable[[], bool], what: str, seconds: float) -> float:
        """Wait for a condition; returns the seconds that it took."""
        began_s = time.monotonic()
        while not condition():
            if time.monotonic() - began_s > seconds:
                raise AssertionError(f"{what}: not within {seconds:g} s\n{self.describe()}")
            time.sleep(LOOK_S)
        return time.monotonic() - began_s

    def until_steps(self, steps: int, seconds: float = 300.0) -> float:
        """Wait until ``steps`` more steps are done."""
        wanted = self.steps_done() + steps
        return self.until(lambda: self.steps_done() >= wanted, f"step {wanted}", seconds)

    def until_complete(self, seconds: float) -> float:
        """Wait until the run has ended, and every service with it."""
        self.until(self.directory.summary.exists, "the end of the run", seconds)
        return self.until(self.is_at_rest, "the end of all services", 120.0)

    def describe(self) -> str:
        """States of the services and last lines of their logs."""
        return f"step {self.steps_done()}\n" + "\n".join(self._describe(name) for name in self.layout.machines)

    def _describe(self, name: str) -> str:
        machine = self.machine(name)
        try:
            status = self.control(name, "status") if machine.is_on else "off"
        except CommandFailed as error:
            status = str(error)
        tails = [
            f"{name} {path.name}: {line}"
            for path in sorted(machine.path(str(RUN / "logs")).glob("*.log"))
            for line in path.read_text(errors="replace").splitlines()[-12:]
        ]
        return "\n".join([f"{name}: {status}", *tails])

    def _asyncrl(self, machine: Machine, *arguments: str, seconds: float = 60.0) -> str:
        return machine.run(str(BIN / "asyncrl"), *arguments, seconds=seconds)
