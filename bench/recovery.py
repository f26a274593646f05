"""
Recovery time after ``kill -9`` of each role in a running run, and the tokens lost by the kills.

    python bench/recovery.py [CONFIG] [--set a.b=value] [--kills 5] [--roles rollout,reward,trainer,broker]

The run has one process of each role, a checkpoint every few steps, and no evaluations. The bench kills one process,
waits until the run has recovered and taken some steps, and kills the next one. It measures from each kill

    back      until the restarted node has joined the broker (for the broker: until it has read its ledger)
    useful    until the trainer has completed a step with data from the new process: the third step after it is back,
              because one batch may have been in training and another complete; for a restarted trainer the first step,
              even if it repeats an earlier step

Loading is included: ``back`` is mostly Python's imports. At the end the bench audits the ledger; a problem is an error.
The exact number of lost tokens is unknown, because a killed process cannot report it. The ledger gives an upper bound:
for every trajectory that was issued again, its final number of tokens minus the tokens on disk when its node died.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

import smoke
from live_run import LiveRun
from run_files import ENDLESS, NEVER, add_run_file, take

from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.ledger.records import Progressed, Reissued, Result
from asyncrl.cli.inspect import read_audit
from asyncrl.messages.trajectory import Unit

SETTINGS = (
    *ENDLESS,
    "rollout.replicas=1",
    "checkpoint.every_steps=5",
    "supervisor.window_s=1",  # a window this short makes every restart count as the first
)
ROLES = ("rollout", "reward", "trainer", "broker")


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = LiveRun(Path(folder), take(options, SETTINGS, NEVER))
        try:
            took = {
                role: [recovery(run, f"{role}-0", options.pace) for _ in range(options.kills)] for role in options.roles
            }
        finally:
            run.end()
        audit, lost = read_audit(run.directory.path), tokens_lost(run)
    for role, seconds in took.items():
        back_s, useful_s = zip(*seconds, strict=True)
        print_line(
            {
                "case": f"kill -9 of the {role}",
                "ours": round(median(useful_s), 2),
                "unit": "s to useful work",
                "worst": round(max(useful_s), 2),
                "back_s": round(median(back_s), 2),
                "kills": len(seconds),
                "better": "lower",
                "peer": "none",
            }
        )
    thrown_away, kills = sum(audit.tokens_thrown_away.values()), sum(map(len, took.values()))
    print_line(
        {
            "case": "the ledger after all kills",
            "ours": len(audit.problems),
            "unit": "problems",
            "better": "lower",
            "kills": kills,
            "steps": audit.steps,
            "skipped": audit.skipped,
            "double_trained": audit.double_trained,
            "reissued": audit.reissued,
            "tokens_thrown_away": thrown_away,
            "tokens_lost_at_most": lost,
            "tokens_lost_per_rollout_kill": round(lost / max(len(took.get("rollout", [])), 1)),
            "peer": "none",
        }
    )
    if audit.problems:
        raise SystemExit("\n".join(audit.problems))


def tokens_lost(run: LiveRun) -> int:
    """Upper bound of the tokens lost by all kills."""
    on_disk: Counter[Unit] = Counter()
    begun: dict[Unit, int] = {}
    lost = 0
    for record in read_records(run.directory.ledger):
        match record:
            case Progressed(unit=unit, summary=summary):
                on_disk[unit] = summary.num_tokens
            case Reissued(unit=unit) if unit.split == "train":
                begun[unit] = on_disk[unit]
            case Result(unit=unit, summary=summary) if unit in begun:
                lost += summary.num_tokens - begun.pop(unit)
    return lost


def recovery(run: LiveRun, node: str, pace: int) -> tuple[float, float]:
    """Kill ``node`` after ``pace`` more steps. Returns seconds until it is back, and until a step has used its work."""
    paced = run.steps_taken() + pace
    run.until(lambda: run.steps_taken() >= paced)
    starts = run.starts_of(node)
    run.kill(node)
    killed_s = time.monotonic()
    back_s = run.until(lambda: run.starts_of(node) > starts)
    done = run.steps_taken() + (1 if node.startswith("trainer") else 3)
    useful_s = run.until(lambda: run.steps_taken() >= done)
    return back_s - killed_s, useful_s - killed_s


def print_line(fields: dict[str, object]) -> None:
    print(json.dumps({"bench": "recovery", **fields}), flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_file(parser)
    parser.add_argument("--kills", type=int, default=5, help="number of kills of each role")
    parser.add_argument("--roles", type=lambda text: text.split(","), default=list(ROLES))
    parser.add_argument("--pace", type=int, default=10, help="optimizer steps from a recovery to the next kill")
    return smoke.parsed(parser)


if __name__ == "__main__":
    main(parsed())
