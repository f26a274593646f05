"""
Judgement of a cluster, pure: its file, the pairs of machines, and one line for each check of a machine and for each
pair.

Only what would stop a run, or end it later, is bad. Clocks and versions of libraries are reported: no rule of asyncrl
compares clocks, and its messages know no torch.
"""

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from asyncrl.config.sections.section import Positive, Section
from asyncrl.config.toml import convert, read
from asyncrl.errors import ConfigError
from asyncrl.runtime.machine import CORE, INSTALL, INSTALL_NODE, NODE, CheckLine, DoctorReport, format_bytes
from asyncrl.tools.cluster.probe import UNLIMITED, Facts, KeyState, NoAnswer, Sent, Unable
from asyncrl.wire.addresses import TCP, check_address

# ── cluster file ──────────────────────────────────────────────────────────────────────────────
# The cluster file: addresses and machines that `asyncrl doctor --cluster` checks. TOML, as strict as a run file.

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


class ClusterMachines(Section, frozen=True, kw_only=True):
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

    def model_of(self, machine: Machine) -> str:
        """Model directory that the roles of ``machine`` read or send to others; empty: none."""
        return machine.model or self.model if {"broker", "trainer", "rollout"} & set(machine.roles) else ""


def load(path: Path) -> ClusterMachines:
    """Read and check a cluster file. Raises as `decode`."""
    return decode(read(path, "cluster file"))


def decode(raw: dict[str, Any]) -> ClusterMachines:
    """Checked `ClusterMachines`. Raises `ConfigError`: unknown key, wrong type or range, or contradicting values."""
    cluster = convert(raw, ClusterMachines)
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


# ── pairs ─────────────────────────────────────────────────────────────────────────────────────
# Pairs of machines that connect to each other in a run, and the rounds in which they are tried. Pure.

Pair = tuple[str, str]
"""Names of the machine that connects and of the one that listens."""

IN_COLLECTIVES = {"trainer", "rollout"}
USES_SPOOLS = {"trainer", "rollout", "reward"}


def connecting_pairs(machines: Sequence[Machine]) -> list[Pair]:
    """
    Pairs of different machines of which the first connects to the second.

    Members of a collective connect in both directions: trainers with each other, and with rollouts. Users of spools
    connect to them. Connections to the broker are checked apart.
    """
    pairs = []
    for a, b in permutations(machines, 2):
        roles, others = set(a.roles), set(b.roles)
        in_collective = roles & IN_COLLECTIVES and others & IN_COLLECTIVES and "trainer" in roles | others
        if in_collective or (roles & USES_SPOOLS and "spool" in others):
            pairs.append((a.name, b.name))
    return pairs


def rounds(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Divide the pairs into rounds in which each machine is busy once, so that transfers do not share a network."""
    left = list(pairs)
    while left:
        now: list[Pair] = []
        busy: set[str] = set()
        for pair in left:
            if busy.isdisjoint(pair):
                now.append(pair)
                busy.update(pair)
        yield now
        left = [pair for pair in left if pair not in now]


# ── findings ──────────────────────────────────────────────────────────────────────────────────
# All that was found out about a cluster.


class ClusterFindings(Struct, frozen=True, kw_only=True):
    """Answers of the machines of a cluster."""

    cluster: ClusterMachines
    looks: dict[str, Facts | Unable | NoAnswer]
    """Answer of each machine, by name."""
    clock_offsets_s: dict[str, float]
    """Clock of the machine minus the clock here, within the time of an answer."""
    bind_problem: str
    """Reason why the machine with the role broker cannot listen on the broker's address; empty: it can."""
    transfers: dict[Pair, Sent | Unable | NoAnswer]


# ── judgement ─────────────────────────────────────────────────────────────────────────────────

CLOCK_S = 2.0
"""An offset that is said to be one; starting an interpreter over ssh takes about as long."""
MIN_OPEN_FILES = 4096
"""Minimum for brokers and spools: each node has several sockets there."""
MIN_FREE_BYTES = 1 << 30


def judge(findings: ClusterFindings) -> DoctorReport:
    """Lines of all machines, then of all pairs."""
    lines = list(_lines(findings))
    return DoctorReport(tuple(lines), all(line.state != "bad" for line in lines))


def _lines(findings: ClusterFindings) -> Iterator[CheckLine]:
    facts = {name: answer for name, answer in findings.looks.items() if isinstance(answer, Facts)}
    for machine in findings.cluster.machine:
        answer = findings.looks[machine.name]
        if isinstance(answer, Facts):
            yield CheckLine(machine.name, "answers", "good", f"as {', '.join(machine.roles)}")
            yield from _machine_lines(findings, machine, facts)
        else:
            remedy = "run this command by hand, and see run and program in the cluster file"
            problem = f"{machine.name} does not answer: {answer.reason}; {remedy}"
            yield CheckLine(machine.name, "answers", "bad", "no", problem)
    for pair, result in findings.transfers.items():
        address = facts[pair[1]].address
        yield _transfer_line(pair, address, result if isinstance(result, Sent) else result.reason)


def _machine_lines(findings: ClusterFindings, machine: Machine, facts: Mapping[str, Facts]) -> Iterator[CheckLine]:
    cluster, here = findings.cluster, facts[machine.name]
    yield _broker_line(cluster, machine, here, findings.bind_problem if "broker" in machine.roles else "")
    yield _interface_line(cluster, machine, here)
    yield from _version_lines(machine, facts, reference(cluster, facts))
    if here.key:
        yield _key_line(machine, here.key, Counter(each.key.broker for each in facts.values() if each.key))
    if here.model_config:
        yield _model_line(cluster, machine, facts)
    yield CheckLine(machine.name, "devices", "good", here.devices)
    yield _limits_line(machine, here)
    yield _disk_line(machine, here)
    yield _clock_line(machine, findings.clock_offsets_s[machine.name])


def reference(cluster: ClusterMachines, facts: Mapping[str, Facts]) -> str:
    """Name of the machine that others are compared with: the broker's, or the first that answers."""
    names = [machine.name for machine in cluster.machine if machine.name in facts]
    return next((m.name for m in cluster.machine if "broker" in m.roles and m.name in facts), names[0])


def _broker_line(cluster: ClusterMachines, machine: Machine, here: Facts, bind_problem: str) -> CheckLine:
    if bind_problem:
        problem = (
            f"{machine.name} cannot listen on {cluster.broker} ({bind_problem}): give the broker an address of this "
            f"machine"
        )
        return CheckLine(machine.name, "broker", "bad", f"cannot listen on {cluster.broker}", problem)
    if not here.broker_problem:
        return CheckLine(machine.name, "broker", "good", f"{cluster.broker} is reachable")
    problem = (
        f"{machine.name} cannot connect to {cluster.broker} ({here.broker_problem}): check the address and the "
        f"firewalls, and that the broker runs if no machine of the cluster file has its role"
    )
    return CheckLine(machine.name, "broker", "bad", f"cannot reach {cluster.broker}", problem)


def _interface_line(cluster: ClusterMachines, machine: Machine, here: Facts) -> CheckLine:
    if not here.address:
        problem = f"{machine.name} has no route to {cluster.broker}: check its network and the address"
        return CheckLine(machine.name, "interface", "bad", "no route to the broker", problem)
    if not here.interface:
        problem = f"no network interface of {machine.name} has the address {here.address}: correct it or leave it out"
        return CheckLine(machine.name, "interface", "bad", f"none has {here.address}", problem)
    if len(cluster.machine) > 1 and here.interface == "lo":
        problem = (
            f"{machine.name} reaches the broker over its loopback interface, where no other machine reaches it: give "
            f"the broker's address on the network instead of {cluster.broker}"
        )
        return CheckLine(machine.name, "interface", "bad", f"{here.interface}, {here.address}", problem)
    return CheckLine(machine.name, "interface", "good", f"{here.interface}, {here.address}")


def _version_lines(machine: Machine, facts: Mapping[str, Facts], other: str) -> Iterator[CheckLine]:
    here, there = facts[machine.name], facts[other]
    if here.protocol != there.protocol:
        problem = (
            f"{machine.name} has protocol {here.protocol} (asyncrl {here.versions.get('asyncrl')}), and {other} "
            f"protocol {there.protocol} (asyncrl {there.versions.get('asyncrl')}): install the same version"
        )
        yield CheckLine(machine.name, "protocol", "bad", f"{here.protocol}, {other} has {there.protocol}", problem)
    else:
        yield CheckLine(machine.name, "protocol", "good", str(here.protocol))
    shown = ", ".join(
        f"{name} {here.versions[name]}" for name in ("asyncrl", "python", "torch") if name in here.versions
    )
    differing = [
        f"{name} {here.versions[name]} ({there.versions[name]} on {other})"
        for name in here.versions.keys() & there.versions.keys()
        if here.versions[name] != there.versions[name]
    ]
    what = f"{shown}; differs: {', '.join(sorted(differing))}" if differing else shown
    yield CheckLine(machine.name, "versions", "absent" if differing else "good", what)
    computes = {"trainer", "rollout"} & set(machine.roles)
    if missing := [name for name in here.missing if computes or name in (*CORE, *NODE)]:
        install = INSTALL if computes else INSTALL_NODE
        problem = f"{machine.name} lacks {', '.join(missing)} for {', '.join(machine.roles)}: {install}"
        yield CheckLine(machine.name, "packages", "bad", f"lacks {', '.join(missing)}", problem)


def _key_line(machine: Machine, key: KeyState, brokers: Counter[str]) -> CheckLine:
    """Line about the key of a machine, beside the brokers that the keys of all machines name."""
    brokers.pop("", None)
    usual = next(iter(dict(brokers.most_common(1))), "")
    if key.broker and key.broker != usual:
        problem = (
            f"the key {key.name} of {machine.name} is for the broker with the key {key.broker}, and that of another "
            f"machine for {usual}: copy the key that this run's broker made for {machine.name}"
        )
        return CheckLine(machine.name, "key", "bad", f"{key.name}, for another broker", problem)
    if key.problem:
        return CheckLine(machine.name, "key", "bad", "cannot be used", f"key of {machine.name}: {key.problem}")
    if others := key.others(list(machine.roles)):
        problem = (
            f"the key {key.name} of {machine.name} is for {', '.join(key.roles)}, not for {', '.join(others)}: allow a "
            f"key for all of its roles with asyncrl keys add"
        )
        return CheckLine(machine.name, "key", "bad", f"{key.name}, not for {', '.join(others)}", problem)
    return CheckLine(
        machine.name, "key", "good", f"{key.name}, for {', '.join(key.roles) or 'roles that it does not tell'}"
    )


def _model_line(cluster: ClusterMachines, machine: Machine, facts: Mapping[str, Facts]) -> CheckLine:
    path = cluster.model_of(machine)
    with_model = {name: each.model_config for name, each in facts.items() if each.model_config}
    here = with_model[machine.name]
    source = next((each.name for each in cluster.machine if "broker" in each.roles), "")
    if facts[machine.name].lacks_model and not {"trainer", "rollout"} & set(machine.roles):
        return CheckLine(machine.name, "model", "absent", f"{path}: none, which others could fetch")
    if facts[machine.name].lacks_model and source in with_model and not with_model[source].problem:
        return CheckLine(machine.name, "model", "absent", f"{path}: none, will be fetched from {source}")
    if here.problem:
        problem = (
            f"{machine.name} cannot read {path}/config.json ({here.problem}): copy the model there, or set model of "
            f"this machine"
        )
        return CheckLine(machine.name, "model", "bad", f"{path}: {here.problem}", problem)
    other = next(name for name, each in with_model.items() if not each.problem)
    if here.digest != with_model[other].digest:
        problem = (
            f"{machine.name} has another model than {other}: SHA-256 of {path}/config.json is {here.digest[:12]}, "
            f"there {with_model[other].digest[:12]}; copy one of them to both"
        )
        return CheckLine(machine.name, "model", "bad", f"{path}, another one than on {other}", problem)
    return CheckLine(machine.name, "model", "good", f"{path}, config.json {here.digest[:12]}")


def _limits_line(machine: Machine, here: Facts) -> CheckLine:
    locked = "any" if here.locked_bytes == UNLIMITED else format_bytes(here.locked_bytes)
    files = "any number of" if here.open_files == UNLIMITED else f"{here.open_files:,}"
    what = f"{files} open files, {locked} locked memory"
    serves = {"broker", "spool"} & set(machine.roles)
    if serves and here.open_files != UNLIMITED and here.open_files < MIN_OPEN_FILES:
        problem = (
            f"{machine.name} allows {here.open_files:,} open files, too few for a {' and '.join(sorted(serves))}: "
            f"raise the hard limit (ulimit -Hn, LimitNOFILE=) to at least {MIN_OPEN_FILES:,}"
        )
        return CheckLine(machine.name, "limits", "bad", what, problem)
    return CheckLine(machine.name, "limits", "good", what)


def _disk_line(machine: Machine, here: Facts) -> CheckLine:
    what = f"{format_bytes(here.free_bytes)} free in {machine.dir}"
    if here.free_bytes >= MIN_FREE_BYTES:
        return CheckLine(machine.name, "disk", "good", what)
    problem = f"{machine.name} has only {what}: make room, or set dir of this machine to another folder"
    return CheckLine(machine.name, "disk", "bad", what, problem)


def _clock_line(machine: Machine, offset_s: float) -> CheckLine:
    if abs(offset_s) <= CLOCK_S:
        return CheckLine(machine.name, "clock", "good", f"within {CLOCK_S:g} s of this one")
    side = "ahead of" if offset_s > 0 else "behind"
    return CheckLine(
        machine.name, "clock", "absent", f"{abs(offset_s):.0f} s {side} this one; times in logs differ by that"
    )


def _transfer_line(pair: Pair, address: str, result: Sent | str) -> CheckLine:
    name = f"{pair[0]} to {pair[1]}"
    if isinstance(result, Sent):
        rate = result.bits_per_s
        speed = f"{rate / 1e9:,.1f} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:,.1f} Mbit/s"
        return CheckLine("transfers", name, "good", f"{speed}, {result.round_trip_s * 1000:.2f} ms")
    problem = (
        f"{pair[0]} cannot send to {pair[1]} at {address} ({result}): open the ports of net.ipv4.ip_local_port_range "
        f"between the two, or set address of {pair[1]}"
    )
    return CheckLine("transfers", name, "bad", "no connection", problem)
