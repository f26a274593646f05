"""
Throughput from rollout to trainer, compared with Ray, xoscar, bare ZeroMQ and bare disk writes.

    python bench/messages.py [--seconds 3] [--rounds 3] [--batches 1,16,64] [--peers ray,xoscar,zmq,log,disk]
                             [--directory DIR]

Every contender sends the same payloads (20 kB, 2,560 tokens) in batches over loopback from one producer through a
middle process to one consumer, which decodes each payload. ``case`` names the asyncrl configuration:

    durable            the real broker: leases, spool and ledger synced to disk, grading, batches, versions, commits
    spool              the data plane alone: Put, sync to disk, Stored, Fetch, checksums; no broker
    spool in memory    the same on a memory file system: like the peers, it loses its data if the machine stops

The queue peers (Ray, xoscar, ZeroMQ) write nothing to disk, lose queued data when they die, and have no leases, grading
or accounting. Two further peers are lower bounds for durable transfer on this machine. The bare log is a relay that
syncs payloads to disk before it forwards them. The bare disk sends nothing: one process appends the same batches to a
file in the same directory and syncs after each batch, or once for a whole window of batches.

Each round measures every contender once with new processes; each figure is the median over the rounds.
``middle_cpu_us`` is the CPU time of the middle process per trajectory, which other load on the machine changes less
than the rate. JSON lines are printed as each comparison finishes; ``ratio`` is ours divided by the peer's.
"""

import argparse
import asyncio
import importlib
import importlib.util
import json
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import smoke
from meter import Rate
from processes import ChildFailed, Processes

MEMORY = Path("/dev/shm")

Flow = Callable[[Processes, int, float], Awaitable[Rate]]


class Peer(NamedTuple):
    """A system to compare with."""

    option: str
    """Its name in ``--peers``."""
    requires: str
    """Python package that must be installed."""
    module: str
    flows: dict[str, str]
    """Function of the module by name in the output, one for each variant."""
    answers: bool = True
    """True if the peer can be called, so that round trips can be timed."""


PEERS = [
    Peer("ray", "ray", "peers.ray_queue", {"ray queue": "flow", "ray queue, 4 gets in flight": "eager_flow"}),
    Peer("xoscar", "xoscar", "peers.xoscar_queue", {"xoscar": "flow"}),
    Peer("zmq", "zmq", "peers.raw_zmq", {"raw zmq relay": "flow"}),
    Peer("log", "zmq", "peers.bare_log", {"bare log": "flow"}, answers=False),
    Peer(
        "disk",
        "os",
        "peers.disk",
        {"disk alone, fsync a batch": "flow", "disk alone, fsync a window": "gathering_flow"},
        answers=False,
    ),
]


class Contender(NamedTuple):
    name: str
    directory: Path
    flow: Flow


async def main(options: argparse.Namespace) -> None:
    if task := asyncio.current_task():  # A SIGTERM also ends the child processes and removes directories.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    peers = []
    for peer in (p for p in PEERS if p.option in options.peers):
        if importlib.util.find_spec(peer.requires):
            peers.append(peer)
        else:
            _print(
                {
                    "case": "all",
                    "peer": peer.option,
                    "skipped": f"{peer.requires} is not installed: pip install -e .[bench]",
                }
            )
    for batch in options.batches:
        await _compare_flows(batch, peers, options)
    await _compare_round_trips(peers, options)


async def _compare_flows(batch: int, peers: list[Peer], options: argparse.Namespace) -> None:
    ours = _ours(options.directory)
    theirs = [
        Contender(name, options.directory, getattr(importlib.import_module(peer.module), function))
        for peer in peers
        for name, function in peer.flows.items()
    ]
    rates: dict[str, list[Rate]] = {contender.name: [] for contender in ours + theirs}
    for _ in range(options.rounds):
        for contender in [*ours, *theirs]:
            try:
                async with Processes(contender.directory) as processes:
                    rates[contender.name].append(await contender.flow(processes, batch, options.seconds))
            except ChildFailed as failure:
                if contender in ours:
                    raise
                theirs.remove(contender)
                _print({"case": f"batch={batch}", "peer": contender.name, "skipped": str(failure)})
    for contender in ours:
        for peer in theirs:
            _print_flow(f"batch={batch}, {contender.name}", rates[contender.name], peer.name, rates[peer.name])


def _ours(directory: Path) -> list[Contender]:
    durable, spool = (importlib.import_module(f"ours.{name}") for name in ("durable", "spool"))
    return [
        Contender("durable", directory, durable.flow),
        Contender("spool", directory, spool.flow),
        Contender("spool in memory", MEMORY, spool.flow),
    ]


def _print_flow(case: str, ours: list[Rate], peer: str, theirs: list[Rate]) -> None:
    rate, peer_rate = _median(ours), _median(theirs)
    _print(
        {
            "case": case,
            "ours": round(rate.trajectories_per_s),
            "unit": "trajectories/s",
            "peer": peer,
            "peer_value": round(peer_rate.trajectories_per_s),
            "ratio": round(rate.trajectories_per_s / peer_rate.trajectories_per_s, 2),
            "better": "higher",
            "mb_per_s": round(rate.mb_per_s, 1),
            "peer_mb_per_s": round(peer_rate.mb_per_s, 1),
            "middle_cpu_us": round(rate.middle_cpu_us, 1),
            "peer_middle_cpu_us": round(peer_rate.middle_cpu_us, 1),
            "rounds": [round(one.trajectories_per_s) for one in ours],
            "peer_rounds": [round(one.trajectories_per_s) for one in theirs],
        }
    )


def _median(rates: list[Rate]) -> Rate:
    return Rate(*(median(getattr(rate, field) for rate in rates) for field in Rate.__struct_fields__))


async def _compare_round_trips(peers: list[Peer], options: argparse.Namespace) -> None:
    modules = {"asyncrl": "ours.durable"} | {f"{peer.option} call": peer.module for peer in peers if peer.answers}
    took_us: dict[str, list[float]] = {name: [] for name in modules}
    for _ in range(options.rounds):
        for name, module in modules.items():
            async with Processes(options.directory) as processes:
                seconds = await importlib.import_module(module).round_trips(processes, options.seconds)
                took_us[name] += [1e6 * one for one in seconds]
    ours = took_us.pop("asyncrl")
    for name, theirs in took_us.items():
        for percent in (50, 99):
            _print_round_trip(percent, _percentile(ours, percent), name, _percentile(theirs, percent))


def _print_round_trip(percent: int, ours: float, peer: str, theirs: float) -> None:
    _print(
        {
            "case": f"round trip of 100 bytes, p{percent}",
            "ours": round(ours, 1),
            "unit": "µs",
            "peer": peer,
            "peer_value": round(theirs, 1),
            "ratio": round(ours / theirs, 3),
            "better": "lower",
        }
    )


def _percentile(values: list[float], percent: int) -> float:
    return quantiles(values, n=100)[percent - 1] if len(values) > 1 else values[0]


def _print(line: dict[str, Any]) -> None:
    print(json.dumps({"bench": "messages", **line}, ensure_ascii=False), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    known = [peer.option for peer in PEERS]
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements of each contender")
    parser.add_argument("--batches", type=_numbers, default=[1, 16, 64], help="trajectories per batch")
    parser.add_argument(
        "--peers", type=lambda text: text.split(","), default=known, help=f"peers to run, of {','.join(known)}"
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="parent of temporary directories, on the disk to measure",
    )
    options = smoke.parsed(parser)
    if unknown := set(options.peers) - set(known) - {""}:
        parser.error(f"unknown peers {sorted(unknown)}; choose from {', '.join(known)}")
    return options


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--child", module, role, *arguments]:
            importlib.import_module(module).CHILDREN[role](*arguments)
        case _:
            try:
                asyncio.run(main(_options()))
            except ChildFailed as failure:
                sys.exit(f"messages: {failure}")
            except asyncio.CancelledError:
                sys.exit(128 + signal.SIGTERM)
