"""
What encryption and keys cost: throughput, time to join, and the broker's CPU time as the number of nodes grows.

    python bench/encryption.py [--parts flows,nodes] [--batch 16] [--nodes 100,1000] [--seconds 3] [--rounds 3]

    flows    trajectories of 2,560 tokens over loopback TCP, control and spool: `durable` through the real broker, and
             the `spool` alone (ours/durable.py, ours/spool.py). Ours: CURVE, a key for each node, an allow-list. The
             peer: the same code without encryption (keyed.py). Goal of `durable`: half of the peer's rate
    nodes    as many nodes, each with a key of its own, join one broker and work (ours/swarm.py). Goals: 1,000 join in
             under 5 s; the broker's CPU time per group at 1,000 nodes is at most 1.5 times that at 100

Contenders take turns; each round measures each of them once in new processes. Figures are medians over the rounds.
``cpu_us`` is the CPU time of the middle process, all its threads, which other load on the machine changes less.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from statistics import median
from typing import Any

import smoke
from keyed import KeyedProcesses, PlainProcesses
from meter import Rate
from ours import cluster, durable, spool, swarm
from processes import ChildFailed, Processes, free_address

DURABLE = {"producer": "rollout", "reward": "reward", "consumer": "trainer", "spool": "spool"}
"""Role of each node of the flows."""
TCP_SPOOL = ("--set", 'broker.spool_bind="tcp://127.0.0.1:0"')
PATIENT = ("--set", "broker.node_ttl_s=60")
"""Many nodes in one process on a busy machine are silent for longer than nodes are."""
GOALS = {"durable": 0.5, "join_s": 5.0, "group_us": 1.5}


async def main(options: argparse.Namespace) -> None:
    if task := asyncio.current_task():  # A SIGTERM also ends the child processes and removes directories.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    if "flows" in options.parts:
        await _flows(options)
    if "nodes" in options.parts:
        await _nodes(options)


# ── throughput ──────────────────────────────────────────────────────────────────────────────


async def _flows(options: argparse.Namespace) -> None:
    for case in ("durable", "spool"):
        rates: dict[bool, list[Rate]] = {True: [], False: []}
        for turn in range(options.rounds):
            for has_keys in sorted(rates, reverse=not turn % 2):
                async with _processes(options.directory, has_keys) as processes:
                    rates[has_keys].append(await _flow(case, processes, options))
        _print_flow(case, rates[True], rates[False], options.batch)


def _processes(directory: Path, has_keys: bool) -> AbstractAsyncContextManager[Processes]:
    return KeyedProcesses(directory, DURABLE) if has_keys else PlainProcesses(directory)


async def _flow(case: str, processes: Processes, options: argparse.Namespace) -> Rate:
    if case == "spool":
        return await spool.flow_at(processes, free_address(), free_address(), options.batch, options.seconds)
    return await durable.flow(processes, options.batch, options.seconds, *TCP_SPOOL, *_keys(processes))


def _keys(processes: Processes) -> list[str]:
    return ["--keys", str(processes.folder.path)] if isinstance(processes, KeyedProcesses) else []


def _print_flow(case: str, ours: list[Rate], plain: list[Rate], batch: int) -> None:
    rates, peer_rates = ([rate.trajectories_per_s for rate in some] for some in (ours, plain))
    _print(
        {
            "case": f"{case}, batch={batch}",
            "ours": round(median(rates)),
            "unit": "trajectories/s",
            "peer": "without encryption",
            "peer_value": round(median(peer_rates)),
            "ratio": round(median(rates) / median(peer_rates), 2),
            "better": "higher",
            "goal": GOALS.get(case),
            "cpu_us": round(median(rate.middle_cpu_us for rate in ours), 1),
            "peer_cpu_us": round(median(rate.middle_cpu_us for rate in plain), 1),
            "rounds": [round(rate) for rate in rates],
            "peer_rounds": [round(rate) for rate in peer_rates],
        }
    )


# ── nodes ───────────────────────────────────────────────────────────────────────────────────


async def _nodes(options: argparse.Namespace) -> None:
    costs: dict[int, list[swarm.Cost]] = {size: [] for size in options.nodes}
    for _ in range(options.rounds):
        for size, rounds in costs.items():
            roles = {**cluster.roles(size), swarm.OWN_SPOOL: "spool"}
            async with KeyedProcesses(options.directory, roles) as processes:
                rounds.append(await swarm.cost(processes, size, options.seconds, *PATIENT, *_keys(processes)))
    _print_growth("until all have joined", "join_s", "s", costs)
    _print_growth("broker, a join", "join_cpu_ms", "ms CPU/node", costs)
    _print_growth("broker, a group", "group_us", "µs CPU/group", costs)
    _print_growth("broker, a group with beats", "gross_group_us", "µs CPU/group", costs)


def _print_growth(case: str, field: str, unit: str, costs: dict[int, list[swarm.Cost]]) -> None:
    values = {size: [getattr(one, field) for one in rounds] for size, rounds in costs.items()}
    smallest = min(values)
    for size, rounds in values.items():
        _print(
            {
                "case": f"{case}, {size:,} keys",
                "ours": round(median(rounds), 2),
                "unit": unit,
                "peer": f"{smallest:,} keys",
                "peer_value": round(median(values[smallest]), 2),
                "ratio": round(median(rounds) / median(values[smallest]), 2),
                "better": "lower",
                "goal": GOALS.get(field),
                "rounds": [round(value, 2) for value in rounds],
            }
        )


def _print(line: dict[str, Any]) -> None:
    print(json.dumps({"bench": "encryption", **line}, ensure_ascii=False), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--parts", type=lambda text: text.split(","), default=["flows", "nodes"])
    parser.add_argument("--batch", type=int, default=16, help="trajectories per batch")
    parser.add_argument("--nodes", type=lambda text: [int(number) for number in text.split(",")], default=[100, 1000])
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements of each contender")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="parent of temporary ones")
    return smoke.parsed(parser)


if __name__ == "__main__":
    try:
        asyncio.run(main(_options()))
    except ChildFailed as failure:
        sys.exit(f"encryption: {failure}")
    except asyncio.CancelledError:
        sys.exit(128 + signal.SIGTERM)
