"""
Settings of ``schedule.staleness = "auto"`` against every fixed one, over many simulated clusters.

    python bench/auto.py [--workloads 500] [--first 49] [--processes 1] [--out runs/auto.jsonl] [--table]

The broker's own rules run under virtual time, as in `asyncrl plan`; no model is needed. Workloads are those of
tests/tools/plan/workloads.py, and two published runs in which asynchrony lost. The search of `asyncrl plan` was
changed after a look at the random workloads before number 49, so those are left out. A choice is made with one seed
and judged with another. Every workload is a JSON line of ``--out``, and is not computed again; ``--table`` prints the
file and computes nothing. Ratios are of throughputs:

    planned    staleness, steps per publish and split, or all devices in turn, by known speeds: `asyncrl plan`
    followed   the staleness that a run comes to, by its own times, at its split: the broker
    of_better  over the better of synchronous and asynchronous; goal .98
    of_best    over the best fixed setting in hindsight; goal .95
"""

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean, median
from typing import Any

import smoke

from asyncrl.tools.plan.plan_file import decode
from tests.tools.plan.workloads import PUBLISHED, as_line, published, workload

TINY = {
    "devices": 2,
    "lengths": {"mean": 50, "sigma": 0.0, "max_tokens": 400},
    "rollout": {"devices": 1, "slots": 8, "decode": [[1, 100], [8, 600]], "prefill_tokens_per_s": 1e5, "kv": "keep"},
    "trainer": {"speeds": [{"devices": 1, "tokens_per_s": 600}]},
    "publish": {"seconds": 0.1, "pause_s": 0.0},
    "schedule": {"groups_per_step": 2, "group_size": 2, "staleness": "auto"},
}
"""The only workload of ``--smoke``."""
GOALS = {"of_better": 0.98, "of_best": 0.95}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=500)
    parser.add_argument("--first", type=int, default=49, help="number of the first random workload")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/auto.jsonl"))
    parser.add_argument("--table", action="store_true")
    given = smoke.parsed(parser)
    if not given.table:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        names = [*PUBLISHED, *map(str, range(given.first, given.first + given.workloads - len(PUBLISHED)))]
        if given.smoke:
            names = ["tiny"]
        known = {line["workload"] for line in lines(given.out)}
        with ProcessPoolExecutor(given.processes) as pool, given.out.open("a", encoding="utf-8") as out:
            for line in pool.map(one, [name for name in names if name not in known]):
                print(json.dumps(line), file=out, flush=True)
                print(json.dumps({"bench": "auto", **line}), flush=True)
    for row in table(list(lines(given.out))):
        print(row)


def one(name: str) -> dict[str, Any]:
    if name == "tiny":
        return as_line(name, decode(TINY), completions=64)
    return as_line(name, published(name) if name in PUBLISHED else workload(int(name)))


def lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def table(found: list[dict[str, Any]]) -> Iterator[str]:
    """A row for each ratio: mean, median and least, and the share of workloads that meet the goal."""
    yield f"{len(found)} workloads"
    yield "| | mean | median | 5 % are below | least | meet the goal |"
    yield "|---|---|---|---|---|---|"
    for how in ("planned", "followed"):
        for ratio, goal in GOALS.items():
            values = sorted(line[f"{how}_{ratio}"] for line in found)
            met = sum(value >= goal for value in values) / len(values)
            cells = (fmean(values), median(values), values[len(values) // 20], values[0])
            yield f"| {how} {ratio} | {' | '.join(f'{value:.3f}' for value in cells)} | {met:.1%} of {goal} |"


if __name__ == "__main__":
    main()
