"""
Broker CPU cost as the number of nodes grows, and ledger throughput.

    python bench/broker.py [--virtual 100,1000,10000] [--groups 18000] [--sockets 100,1000] [--seconds 4]
                           [--ledger 1,16,64] [--rounds 3] [--directory DIR]

    virtual   the scheduler alone with simulated nodes: no sockets, no disk (ours/cluster.py)
    sockets   a real broker process with its ledger on disk, and one socket per node (ours/swarm.py)
    ledger    trajectories per second written to disk, compared with a plain SQLite table and with a bare append and
              fdatasync of the same bytes (ledgers.py)

Cost is CPU time, because other load on the machine changes CPU time less than wall time. ``ratio`` is the cost divided
by the cost of the smallest cluster in the same run; the goal is at most 1.5 per group. Heartbeats and ticks have
separate lines, because their cost grows with the number of nodes, not with the number of groups.

Every round measures each size once in new processes. Each figure is the median over the rounds.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import ledgers
import smoke
from ours import cluster, swarm
from processes import ChildFailed, Processes


async def main(options: argparse.Namespace) -> None:
    if task := asyncio.current_task():  # A SIGTERM also ends the child processes and removes directories.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await _virtual(options)
    await _sockets(options)
    await asyncio.to_thread(_ledger, options)  # The ledger bench starts its own event loops.


async def _virtual(options: argparse.Namespace) -> None:
    costs: dict[int, list[cluster.Cost]] = {size: [] for size in options.virtual}
    for _ in range(options.rounds):
        for size, rounds in costs.items():
            async with Processes(options.directory) as processes:
                rounds.append(await cluster.cost(processes, size, options.groups))
    _print_growth("virtual", "group_us", "µs CPU/group", costs)
    _print_growth("virtual, beats", "beat_us", "µs CPU/node/s", costs)
    _print_growth("virtual, ticks", "tick_us", "µs CPU/node/s", costs)
    _print_growth("virtual, joining", "join_us", "µs CPU/node", costs)


async def _sockets(options: argparse.Namespace) -> None:
    costs: dict[int, list[swarm.Cost]] = {size: [] for size in options.sockets}
    for _ in range(options.rounds):
        for size, rounds in costs.items():
            async with Processes(options.directory) as processes:
                rounds.append(await swarm.cost(processes, size, options.seconds))
    _print_growth("sockets", "group_us", "µs CPU/group", costs)
    _print_growth("sockets, with beats", "gross_group_us", "µs CPU/group", costs)
    _print_growth("sockets, idle", "idle_us", "µs CPU/node/s", costs)
    _print_growth("sockets, until all have joined", "join_s", "s", costs)
    _print_growth("sockets, throughput", "groups_per_s", "groups/s", costs, better="higher")


def _print_growth(case: str, field: str, unit: str, costs: dict[int, Any], *, better: str = "lower") -> None:
    values = {size: [getattr(one, field) for one in rounds] for size, rounds in costs.items()}
    smallest = min(values, default=0)
    for size, rounds in values.items():
        _print(
            {
                "case": f"{case}, {size:,} nodes",
                "ours": _short(median(rounds)),
                "unit": unit,
                "peer": f"{smallest:,} nodes",
                "peer_value": _short(median(values[smallest])),
                "ratio": round(median(rounds) / median(values[smallest]), 2),
                "better": better,
                "rounds": [_short(value) for value in rounds],
            }
        )


def _ledger(options: argparse.Namespace) -> None:
    ways: dict[str, ledgers.Keep] = {
        "asyncrl": ledgers.ours,
        "sqlite table": ledgers.sqlite_table,
        "append and fdatasync": ledgers.appended_file,
    }
    for together in options.ledger:
        rates: dict[str, list[ledgers.Rate]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, keep in ways.items():
                with tempfile.TemporaryDirectory(prefix="asyncrl-bench-", dir=options.directory) as path:
                    rates[name].append(keep(Path(path), together, options.ledger_seconds))
        ours = rates.pop("asyncrl")
        for name, theirs in rates.items():
            _print_ledger(together, ours, name, theirs)


def _print_ledger(together: int, ours: list[ledgers.Rate], peer: str, theirs: list[ledgers.Rate]) -> None:
    ours_per_s, theirs_per_s = (median(one.trajectories_per_s for one in rates) for rates in (ours, theirs))
    _print(
        {
            "case": f"ledger, {together} a commit",
            "ours": round(ours_per_s),
            "unit": "trajectories/s",
            "peer": peer,
            "peer_value": round(theirs_per_s),
            "ratio": round(ours_per_s / theirs_per_s, 2),
            "better": "higher",
            "cpu_us": round(median(one.cpu_us for one in ours), 1),
            "peer_cpu_us": round(median(one.cpu_us for one in theirs), 1),
            "rounds": [round(one.trajectories_per_s) for one in ours],
            "peer_rounds": [round(one.trajectories_per_s) for one in theirs],
        }
    )


def _short(value: float) -> float:
    return round(value, 0 if value >= 100 else 2)


def _print(line: dict[str, Any]) -> None:
    print(json.dumps({"bench": "broker", **line}, ensure_ascii=False), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument(
        "--virtual",
        type=_numbers,
        default=[100, 1_000, 10_000],
        help="numbers of simulated nodes; empty skips this part",
    )
    parser.add_argument(
        "--groups", type=int, default=18_000, help="minimum number of groups to retire in each virtual measurement"
    )
    parser.add_argument(
        "--sockets",
        type=_numbers,
        default=[100, 1_000],
        help="numbers of nodes with one socket each; empty skips this part",
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each sockets measurement")
    parser.add_argument(
        "--ledger", type=_numbers, default=[1, 16, 64], help="trajectories per ledger commit; empty skips this part"
    )
    parser.add_argument("--ledger-seconds", type=float, default=1.0, help="duration of each ledger measurement")
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements of each size")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="parent of temporary directories, on the disk to measure",
    )
    return smoke.parsed(parser)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


if __name__ == "__main__":
    try:
        asyncio.run(main(_options()))
    except ChildFailed as failure:
        sys.exit(f"broker: {failure}")
    except asyncio.CancelledError:
        sys.exit(128 + signal.SIGTERM)
