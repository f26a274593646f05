"""Simulates a range of seeds and prints one JSON line; for a failed seed it has the command that replays it."""

import argparse
import json
import sys

from tests.simulation.mutants import MUTANTS, planted
from tests.simulation.schedule import Outcome, search


def main() -> int:
    """Exit code 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:1000", metavar="FROM:TO", help="a range without its end")
    parser.add_argument("--seed", type=int, help="run only this seed and print its events")
    parser.add_argument("--mutant", default="", choices=["", *MUTANTS], help="plant this bug first")
    options = parser.parse_args()
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    else:
        seeds = range(*map(int, options.seeds.split(":")))
    with planted(options.mutant):
        outcome = search(seeds, is_traced=options.seed is not None)
    sys.stdout.write(json.dumps(report(outcome, seeds, options.mutant)) + "\n")
    return int(outcome.failed_seed is not None)


def report(outcome: Outcome, seeds: range, mutant: str) -> dict[str, object]:
    sums = {
        "seeds": f"{seeds.start}:{seeds.stop}",
        "schedules": outcome.schedules,
        "schedules_per_s": round(outcome.schedules / outcome.wall_s, 1),
        "wall_s": round(outcome.wall_s, 2),
        "schedules_per_cpu_s": round(outcome.schedules / outcome.cpu_s, 1),
        "virtual_s": round(outcome.virtual_s),
        "records": outcome.records,
        "resumed": outcome.resumed,
        "started_over": outcome.started_over,
        "judged_whole": outcome.judged_whole,
        "violations": 0,
    }
    if outcome.failed_seed is None:
        return sums
    replay = f"python -m tests.simulation --seed {outcome.failed_seed}" + (f" --mutant {mutant}" if mutant else "")
    return sums | {"violations": 1, "seed": outcome.failed_seed, "violation": outcome.violation, "replay": replay}


if __name__ == "__main__":
    sys.exit(main())
