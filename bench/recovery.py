"""
Seconds from ``kill -9`` to useful work, for each role, in a run that goes on meanwhile; and what the kills cost.

    python bench/recovery.py [CONFIG] [--set a.b=value] [--kills 5] [--roles rollout,reward,trainer,broker]

One run with one process of each role, a checkpoint every few steps, no evaluations. Again and again one process is
killed when the run has found its pace; the clock then runs

    back      until the broker hears of its next start (the broker itself: until it has read its ledger)
    useful    until the trainer has taken a step whose data passed through the new process: the third after it is back,
              because one batch may have been in training and one complete; of a resumed trainer the first, also if
              it is one it had taken before

Loading is on the clock: ``back`` is mostly Python's imports. At the end the ledger is audited; a problem is an error.
What a kill costs in tokens nobody knows exactly, for the dead do not tell; the ledger says how many at most: of every
trajectory that was begun anew, those that were written in the end and were not on disk when its node died.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

from live_run import ENDLESS, QUICKSTART, LiveRun

from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.ledger.records import Progressed, Reissued, Result
from asyncrl.cli.inspect import read_audit
from asyncrl.messages import Unit

SETTINGS = ENDLESS | {
    "rollout.replicas": "1",
    "checkpoint.every_steps": "5",
    "supervisor.window_s": "1",  # each kill is the first
}
ROLES = ("rollout", "reward", "trainer", "broker")
PACE_STEPS = 10
"""Steps between a recovery and the next kill."""


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        victim = LiveRun(Path(folder), options.config, SETTINGS, options.overrides)
        try:
            took = {role: [recovery(victim, f"{role}-0") for _ in range(options.kills)] for role in options.roles}
        finally:
            victim.end()
        audit, lost = read_audit(victim.directory.path), tokens_lost(victim)
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


def tokens_lost(victim: LiveRun) -> int:
    """At most; see above."""
    on_disk: Counter[Unit] = Counter()
    begun: dict[Unit, int] = {}
    lost = 0
    for record in read_records(victim.directory.ledger):
        match record:
            case Progressed(unit=unit, summary=summary):
                on_disk[unit] = summary.num_tokens
            case Reissued(unit=unit) if unit.split == "train":
                begun[unit] = on_disk[unit]
            case Result(unit=unit, summary=summary) if unit in begun:
                lost += summary.num_tokens - begun.pop(unit)
    return lost


def recovery(victim: LiveRun, node: str) -> tuple[float, float]:
    """Seconds until ``node`` is back, and until its work has gone into a step."""
    paced = victim.steps_taken() + PACE_STEPS
    victim.until(lambda: victim.steps_taken() >= paced)
    starts = victim.starts_of(node)
    victim.kill(node)
    killed_s = time.monotonic()
    back_s = victim.until(lambda: victim.starts_of(node) > starts)
    done = victim.steps_taken() + (1 if node.startswith("trainer") else 3)
    useful_s = victim.until(lambda: victim.steps_taken() >= done)
    return back_s - killed_s, useful_s - killed_s


def print_line(fields: dict[str, object]) -> None:
    print(json.dumps({"bench": "recovery", **fields}), flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", type=Path, default=QUICKSTART)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--kills", type=int, default=5, help="of each role")
    parser.add_argument(
        "--roles", type=lambda text: text.split(","), default=["rollout", "reward", "trainer", "broker"]
    )
    return parser.parse_args()


if __name__ == "__main__":
    main(parsed())
