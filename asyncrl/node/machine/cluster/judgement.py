"""
Judges what was found out about a cluster: one line for each check of a machine, and for each pair. Pure.

Only what would stop a run, or end it later, is bad. Clocks and versions of libraries are reported: no rule of asyncrl
compares clocks, and its messages know no torch.
"""

from collections.abc import Iterator, Mapping

from asyncrl.node.machine.cluster.cluster_file import Cluster, Machine
from asyncrl.node.machine.cluster.findings import Findings
from asyncrl.node.machine.cluster.key_state import KeyState
from asyncrl.node.machine.cluster.pairs import Pair
from asyncrl.node.machine.cluster.probe_messages import UNLIMITED, Facts, Sent
from asyncrl.node.machine.diagnosis import Diagnosis, Line
from asyncrl.node.machine.machine import CORE, INSTALL, INSTALL_NODE, NODE, format_bytes

CLOCK_S = 2.0
"""An offset that is said to be one; starting an interpreter over ssh takes about as long."""
MIN_OPEN_FILES = 4096
"""Minimum for brokers and spools: each node has several sockets there."""
MIN_FREE_BYTES = 1 << 30


def judge(findings: Findings) -> Diagnosis:
    """Lines of all machines, then of all pairs."""
    lines = list(_lines(findings))
    return Diagnosis(tuple(lines), all(line.state != "bad" for line in lines))


def _lines(findings: Findings) -> Iterator[Line]:
    facts = {name: answer for name, answer in findings.looks.items() if isinstance(answer, Facts)}
    for machine in findings.cluster.machine:
        answer = findings.looks[machine.name]
        if isinstance(answer, Facts):
            yield Line(machine.name, "answers", "good", f"as {', '.join(machine.roles)}")
            yield from _machine_lines(findings, machine, facts)
        else:
            remedy = "run this command by hand, and see run and program in the cluster file"
            problem = f"{machine.name} does not answer: {answer.reason}; {remedy}"
            yield Line(machine.name, "answers", "bad", "no", problem)
    for pair, result in findings.transfers.items():
        address = facts[pair[1]].address
        yield _transfer_line(pair, address, result if isinstance(result, Sent) else result.reason)


def _machine_lines(findings: Findings, machine: Machine, facts: Mapping[str, Facts]) -> Iterator[Line]:
    cluster, here = findings.cluster, facts[machine.name]
    yield _broker_line(cluster, machine, here, findings.bind_problem if "broker" in machine.roles else "")
    yield _interface_line(cluster, machine, here)
    yield from _version_lines(machine, facts, reference(cluster, facts))
    if here.key:
        yield _key_line(machine, here.key)
    if here.model_config:
        yield _model_line(cluster, machine, facts)
    yield Line(machine.name, "devices", "good", here.devices)
    yield _limits_line(machine, here)
    yield _disk_line(machine, here)
    yield _clock_line(machine, findings.clock_offsets_s[machine.name])


def reference(cluster: Cluster, facts: Mapping[str, Facts]) -> str:
    """Name of the machine that others are compared with: the broker's, or the first that answers."""
    names = [machine.name for machine in cluster.machine if machine.name in facts]
    return next((m.name for m in cluster.machine if "broker" in m.roles and m.name in facts), names[0])


def _broker_line(cluster: Cluster, machine: Machine, here: Facts, bind_problem: str) -> Line:
    if bind_problem:
        problem = (
            f"{machine.name} cannot listen on {cluster.broker} ({bind_problem}): give the broker an address of this "
            f"machine"
        )
        return Line(machine.name, "broker", "bad", f"cannot listen on {cluster.broker}", problem)
    if not here.broker_problem:
        return Line(machine.name, "broker", "good", f"{cluster.broker} is reachable")
    problem = (
        f"{machine.name} cannot connect to {cluster.broker} ({here.broker_problem}): check the address and the "
        f"firewalls, and that the broker runs if no machine of the cluster file has its role"
    )
    return Line(machine.name, "broker", "bad", f"cannot reach {cluster.broker}", problem)


def _interface_line(cluster: Cluster, machine: Machine, here: Facts) -> Line:
    if not here.address:
        problem = f"{machine.name} has no route to {cluster.broker}: check its network and the address"
        return Line(machine.name, "interface", "bad", "no route to the broker", problem)
    if not here.interface:
        problem = f"no network interface of {machine.name} has the address {here.address}: correct it or leave it out"
        return Line(machine.name, "interface", "bad", f"none has {here.address}", problem)
    if len(cluster.machine) > 1 and here.interface == "lo":
        problem = (
            f"{machine.name} reaches the broker over its loopback interface, where no other machine reaches it: give "
            f"the broker's address on the network instead of {cluster.broker}"
        )
        return Line(machine.name, "interface", "bad", f"{here.interface}, {here.address}", problem)
    return Line(machine.name, "interface", "good", f"{here.interface}, {here.address}")


def _version_lines(machine: Machine, facts: Mapping[str, Facts], other: str) -> Iterator[Line]:
    here, there = facts[machine.name], facts[other]
    if here.protocol != there.protocol:
        problem = (
            f"{machine.name} has protocol {here.protocol} (asyncrl {here.versions.get('asyncrl')}), and {other} "
            f"protocol {there.protocol} (asyncrl {there.versions.get('asyncrl')}): install the same version"
        )
        yield Line(machine.name, "protocol", "bad", f"{here.protocol}, {other} has {there.protocol}", problem)
    else:
        yield Line(machine.name, "protocol", "good", str(here.protocol))
    shown = ", ".join(
        f"{name} {here.versions[name]}" for name in ("asyncrl", "python", "torch") if name in here.versions
    )
    differing = [
        f"{name} {here.versions[name]} ({there.versions[name]} on {other})"
        for name in here.versions.keys() & there.versions.keys()
        if here.versions[name] != there.versions[name]
    ]
    what = f"{shown}; differs: {', '.join(sorted(differing))}" if differing else shown
    yield Line(machine.name, "versions", "absent" if differing else "good", what)
    computes = {"trainer", "rollout"} & set(machine.roles)
    if missing := [name for name in here.missing if computes or name in (*CORE, *NODE)]:
        install = INSTALL if computes else INSTALL_NODE
        problem = f"{machine.name} lacks {', '.join(missing)} for {', '.join(machine.roles)}: {install}"
        yield Line(machine.name, "packages", "bad", f"lacks {', '.join(missing)}", problem)


def _key_line(machine: Machine, key: KeyState) -> Line:
    if key.problem:
        return Line(machine.name, "key", "bad", "cannot be used", f"key of {machine.name}: {key.problem}")
    if others := key.others(list(machine.roles)):
        problem = (
            f"the key {key.name} of {machine.name} is for {', '.join(key.roles)}, not for {', '.join(others)}: allow a "
            f"key for all of its roles with asyncrl keys add"
        )
        return Line(machine.name, "key", "bad", f"{key.name}, not for {', '.join(others)}", problem)
    return Line(machine.name, "key", "good", f"{key.name}, for {', '.join(key.roles) or 'roles that it does not tell'}")


def _model_line(cluster: Cluster, machine: Machine, facts: Mapping[str, Facts]) -> Line:
    path = cluster.model_of(machine)
    with_model = {name: each.model_config for name, each in facts.items() if each.model_config}
    here = with_model[machine.name]
    source = next((each.name for each in cluster.machine if "broker" in each.roles), "")
    if facts[machine.name].lacks_model and not {"trainer", "rollout"} & set(machine.roles):
        return Line(machine.name, "model", "absent", f"{path}: none, which others could fetch")
    if facts[machine.name].lacks_model and source in with_model and not with_model[source].problem:
        return Line(machine.name, "model", "absent", f"{path}: none, will be fetched from {source}")
    if here.problem:
        problem = (
            f"{machine.name} cannot read {path}/config.json ({here.problem}): copy the model there, or set model of "
            f"this machine"
        )
        return Line(machine.name, "model", "bad", f"{path}: {here.problem}", problem)
    other = next(name for name, each in with_model.items() if not each.problem)
    if here.digest != with_model[other].digest:
        problem = (
            f"{machine.name} has another model than {other}: SHA-256 of {path}/config.json is {here.digest[:12]}, "
            f"there {with_model[other].digest[:12]}; copy one of them to both"
        )
        return Line(machine.name, "model", "bad", f"{path}, another one than on {other}", problem)
    return Line(machine.name, "model", "good", f"{path}, config.json {here.digest[:12]}")


def _limits_line(machine: Machine, here: Facts) -> Line:
    locked = "any" if here.locked_bytes == UNLIMITED else format_bytes(here.locked_bytes)
    files = "any number of" if here.open_files == UNLIMITED else f"{here.open_files:,}"
    what = f"{files} open files, {locked} locked memory"
    serves = {"broker", "spool"} & set(machine.roles)
    if serves and here.open_files != UNLIMITED and here.open_files < MIN_OPEN_FILES:
        problem = (
            f"{machine.name} allows {here.open_files:,} open files, too few for a {' and '.join(sorted(serves))}: "
            f"raise the hard limit (ulimit -Hn, LimitNOFILE=) to at least {MIN_OPEN_FILES:,}"
        )
        return Line(machine.name, "limits", "bad", what, problem)
    return Line(machine.name, "limits", "good", what)


def _disk_line(machine: Machine, here: Facts) -> Line:
    what = f"{format_bytes(here.free_bytes)} free in {machine.dir}"
    if here.free_bytes >= MIN_FREE_BYTES:
        return Line(machine.name, "disk", "good", what)
    problem = f"{machine.name} has only {what}: make room, or set dir of this machine to another folder"
    return Line(machine.name, "disk", "bad", what, problem)


def _clock_line(machine: Machine, offset_s: float) -> Line:
    if abs(offset_s) <= CLOCK_S:
        return Line(machine.name, "clock", "good", f"within {CLOCK_S:g} s of this one")
    side = "ahead of" if offset_s > 0 else "behind"
    return Line(machine.name, "clock", "absent", f"{abs(offset_s):.0f} s {side} this one; times in logs differ by that")


def _transfer_line(pair: Pair, address: str, result: Sent | str) -> Line:
    name = f"{pair[0]} to {pair[1]}"
    if isinstance(result, Sent):
        what = f"{_format_bits(result.bits_per_s)}, {result.round_trip_s * 1000:.2f} ms"
        return Line("transfers", name, "good", what)
    problem = (
        f"{pair[0]} cannot send to {pair[1]} at {address} ({result}): open the ports of net.ipv4.ip_local_port_range "
        f"between the two, or set address of {pair[1]}"
    )
    return Line("transfers", name, "bad", "no connection", problem)


def _format_bits(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e9:,.1f} Gbit/s" if bits_per_s >= 1e9 else f"{bits_per_s / 1e6:,.1f} Mbit/s"
