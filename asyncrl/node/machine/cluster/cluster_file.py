"""The cluster file: addresses and machines that `asyncrl doctor --cluster` checks. TOML, as strict as a run file."""

import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from asyncrl.config.addresses import TCP, check_address, host_of, port_of
from asyncrl.config.sections.section import Positive, Section
from asyncrl.config.toml import convert, read
from asyncrl.errors import ConfigError

MachineRole = Literal["broker", "spool", "reward", "trainer", "rollout"]


class Machine(Section, frozen=True, kw_only=True):
    """One machine. Paths are paths on it."""

    name: Annotated[str, Meta(min_length=1)]
    roles: Annotated[list[MachineRole], Meta(min_length=1)]
    run: str = ""
    """Words before a command that run it there, such as ``ssh node-1``; empty: here."""
    program: str = ""
    """Words that start asyncrl there; empty: ``-m asyncrl`` of the interpreter of this command, at the same path."""
    address: str = ""
    """IP address at which other machines reach it; empty: that of its route to the broker."""
    key: str = ""
    """Key file; empty: not checked."""
    model: str = ""
    """Model directory; empty: `Cluster.model`."""
    dir: str = "."
    """Folder for the run or its caches, whose free space is checked."""

    @property
    def command(self) -> list[str]:
        """Words that start asyncrl on this machine."""
        return [*shlex.split(self.run), *(shlex.split(self.program) or [sys.executable, "-m", "asyncrl"])]


class Cluster(Section, frozen=True, kw_only=True):
    """Machines of one run."""

    broker: str
    """Address of the broker, as its nodes have it: ``tcp://HOST:PORT``."""
    machine: Annotated[list[Machine], Meta(min_length=1)]
    model: str = ""
    """Model directory of broker, trainers and rollouts; empty: not checked."""
    deadline_s: Positive = 60.0
    """Time limit of a command on a machine."""
    transfer_s: Positive = 2.0
    """Duration of the transfer that measures a bandwidth."""

    @property
    def broker_host(self) -> str:
        """Host name or IP address, without brackets."""
        return host_of(self.broker)

    @property
    def broker_port(self) -> int:
        return port_of(self.broker)

    def model_of(self, machine: Machine) -> str:
        """Model directory that the roles of ``machine`` read or send to others; empty: none."""
        return machine.model or self.model if {"broker", "trainer", "rollout"} & set(machine.roles) else ""


def load(path: Path) -> Cluster:
    """Read and check a cluster file. Raises as `decode`."""
    return decode(read(path, "cluster file"))


def decode(raw: dict[str, Any]) -> Cluster:
    """Checked `Cluster`. Raises `ConfigError`: unknown key, wrong type or range, or contradicting values."""
    cluster = convert(raw, Cluster)
    if not TCP.fullmatch(cluster.broker):
        raise ConfigError(f"broker is {cluster.broker!r}: expected tcp://HOST:PORT")
    check_address(cluster.broker, "broker")
    for name, count in Counter(machine.name for machine in cluster.machine).items():
        if count > 1:
            raise ConfigError(f"{count} machines have the name {name!r}: expected a name of its own for each")
    if len(brokers := [machine.name for machine in cluster.machine if "broker" in machine.roles]) > 1:
        raise ConfigError(f"{' and '.join(brokers)} have the role broker: expected one machine at most")
    for machine in cluster.machine:
        try:
            _ = machine.command
        except ValueError as error:
            raise ConfigError(f"machine {machine.name!r}: run or program cannot be split into words: {error}") from None
    return cluster
