"""
Resident memory of a real broker process through which small trajectories pass: does it grow?

    python bench/broker_memory.py [--seconds 240] [--tokens 16] [--groups 2] [--directory DIR]

Rollout, reward node and trainer are scripted (ours/durable.py): leases, spool, ledger, grading, batches, versions and
commits are real. A step takes ``--groups`` groups of 8 trajectories with ``--tokens`` tokens. The resident memory of
the broker's process is read ``--every`` seconds. Printed are its value after the first fifth of the time and at the
end, and the slope between them by least squares, in bytes a trajectory.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from itertools import pairwise
from pathlib import Path

import smoke
from meter import Rate
from ours import durable
from processes import Processes

MB = 1e6
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
WARM_UP = 0.2
"""Share of the time."""


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


async def main(options: argparse.Namespace) -> None:
    async with Processes(options.directory) as processes:
        broker_pid, address = await durable.start_broker(processes, groups_per_step=options.groups)
        await processes.start("ours.durable", "reward", address)
        await processes.start("ours.durable", "produce", address, 1, options.tokens)
        consumer = await processes.start(
            "ours.durable", "consume", address, options.seconds, broker_pid, str(processes.path)
        )
        reading = asyncio.create_task(samples(broker_pid, options.every))
        rate = await processes.result(consumer, Rate, options.seconds + durable.PATIENCE_S)
        reading.cancel()
        found = list(TAKEN)
    warm = [(at_s, size) for at_s, size in found if at_s >= WARM_UP * found[-1][0]]
    slope = statistics.linear_regression(*zip(*warm, strict=True)).slope if len(warm) > 1 else 0.0
    number = rate.trajectories_per_s * options.seconds
    line = {
        "bench": "broker_memory",
        "case": f"tokens={options.tokens} groups={options.groups}",
        "ours": round(slope / rate.trajectories_per_s, 1),
        "unit": "bytes/trajectory",
        "better": "lower",
        "trajectories": round(number),
        "steps": round(number / options.groups / durable.GROUP_SIZE),
        "warm_mb": round(warm[0][1] / MB, 1),
        "end_mb": round(warm[-1][1] / MB, 1),
        "most_mb": round(max(size for _, size in found) / MB, 1),
        "rises": sum(later > size for (_, size), (_, later) in pairwise(warm)),
        "trajectories_per_s": round(rate.trajectories_per_s),
        "broker_cpu_us": round(rate.middle_cpu_us, 1),
    }
    print(json.dumps(line), flush=True)


TAKEN: list[tuple[float, int]] = []
"""Seconds since the first look, and bytes."""


async def samples(pid: int, every_s: float) -> None:
    """Look at the memory of a process until this is cancelled."""
    began_s = time.monotonic()
    while True:
        TAKEN.append((time.monotonic() - began_s, resident_bytes(pid)))
        await asyncio.sleep(every_s)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two looks")
    parser.add_argument("--tokens", type=int, default=16, help="completion tokens of a trajectory")
    parser.add_argument("--groups", type=int, default=2, help="groups of a step")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="where ledger and spool are written")
    return smoke.parsed(parser)


if __name__ == "__main__":
    asyncio.run(main(parsed()))
