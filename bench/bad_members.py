"""
A member with a bug beside two healthy nodes of its role: does the run take all its steps, and at what pace?

    python bench/bad_members.py [--steps 500] [--roles rollout reward spool] [--bugs NAME ...] [--directory DIR]

Broker, ledger, spools and reward nodes are real processes; rollouts without an engine and a trainer without a model
are scripted (ours/members.py). Each run has two healthy rollouts and reward nodes, and one member more, which does
everything wrong in one way: a bad rollout that finishes does it in a quarter of the time of the healthy ones ("quick"),
and in three times theirs ("slow"). Beside a bad spool there are that of the broker's process and another one, and three
rollouts, as fast as two. The same run without a bad member comes first. For each run one JSON line: its pace in steps/s
beside that of the healthy run, the seconds from the bad member's joining until it was barred, trajectories of it that
were trained on, and what the audit of the ledger says.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import smoke
from msgspec import Struct
from ours import durable, members
from processes import Processes

from asyncrl.broker.ledger.audit import audit
from asyncrl.broker.ledger.reader import read_records
from asyncrl.config.sections.schedule import Schedule

NAME = "bad"
GROUPS, STALENESS = 2, 7.0
"""16 trajectories a step, and 128 at once: more than two rollouts can have in hand."""
PATIENCE_S = 240.0


class Case(Struct, frozen=True):
    """One run. Without a role there is no bad member."""

    role: str = ""
    bug: str = ""
    pace: float = 1.0

    @property
    def title(self) -> str:
        if not self.role:
            return "healthy"
        return f"{self.role} {self.bug}" + ("" if self.pace == 1 else " quick" if self.pace < 1 else " slow")


def cases(options: argparse.Namespace) -> Iterator[Case]:
    for role in options.roles:
        for bug in options.bugs or members.BUGS[role]:
            if bug in members.DAMAGE and role == "rollout":
                yield from (Case(role, bug, pace) for pace in options.paces)
            elif bug in members.BUGS[role]:
                yield Case(role, bug)


async def run(case: Case, options: argparse.Namespace) -> dict[str, object]:
    """One run to its end."""
    async with Processes(options.directory) as processes:
        # Secrets of earlier brokers at the same port are not this run's.
        os.environ["XDG_STATE_HOME"] = str(processes.path / "state")
        _, address = await durable.start_broker(
            processes,
            groups_per_step=GROUPS,
            staleness=STALENESS,
            steps=options.steps,
            max_tokens=members.MAX_TOKENS,
            verdict_s=1.0,
        )
        at = ("--broker", address, "--name")
        if case.role == "spool":
            await processes.start(
                "ours.members", "node", "spool", "", *at, "spool-1", "--dir", processes.path / "spool-1"
            )
            await processes.start(
                "ours.members", "node", "spool", case.bug, *at, NAME, "--dir", processes.path / "spool-bad"
            )
        num_rollouts = 3 if case.role == "spool" else 2  # one for each spool, together as fast as two
        for number in (1, 2):
            await processes.start("ours.members", "node", "reward", "", *at, f"reward-{number}")
        for number in range(1, num_rollouts + 1):
            await processes.start("ours.members", "sample", address, f"rollout-{number}", num_rollouts / 2, "")
        if case.role == "rollout":
            await processes.start("ours.members", "sample", address, NAME, case.pace, case.bug)
        elif case.role == "reward":
            await processes.start("ours.members", "node", "reward", case.bug, *at, NAME)
        trainer = await processes.start("ours.members", "train", address, options.steps, NAME, str(processes.path))
        trained = await processes.result(trainer, members.Trained, PATIENCE_S)
        folder = next(path.parent for path in processes.path.glob("**/ledger.sqlite"))
        return {
            "steps": trained.steps,
            "steps_per_s": round((trained.steps - 1) / trained.seconds, 2),
            "full": round(trained.trajectories / (trained.steps * GROUPS * durable.GROUP_SIZE), 4),
            "of_bug": trained.of_bug,
            "refused": trained.refused,
            **barred(folder),
            "problems": problems(folder),
        }


def barred(folder: Path) -> dict[str, object]:
    """When nodes were barred, and which."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    joined = next(
        (event for event in events if event["event"] == "node.joined" and str(event["node"]).startswith(NAME)), None
    )
    found = [event for event in events if event["event"] == "node.barred"]
    if not (found and joined):
        return {"barred": [event["node"] for event in found]}
    return {
        "barred": sorted({event["node"] for event in found}),
        "barred_s": round((_time(found[0]) - _time(joined)).total_seconds(), 1),
        "cause": found[0]["cause"],
    }


def _time(event: dict[str, str]) -> datetime:
    return datetime.fromisoformat(event["at"])


def problems(folder: Path) -> list[str]:
    """What the audit of the ledger finds; there are no checkpoints to compare it with."""
    schedule = Schedule(groups_per_step=GROUPS, group_size=durable.GROUP_SIZE, staleness=STALENESS)
    return audit(read_records(folder / "ledger.sqlite"), schedule).problems


async def main(options: argparse.Namespace) -> None:
    healthy = 0.0
    for case in (Case(), *cases(options)):
        found = await run(case, options)
        pace = float(str(found["steps_per_s"]))
        healthy = healthy or pace
        line = {
            "bench": "bad_members",
            "case": case.title,
            "ours": pace,
            "unit": "steps/s",
            "peer": "healthy",
            "peer_value": healthy,
            "ratio": round(pace / healthy, 3),
            "better": "higher",
        }
        print(json.dumps(line | {key: value for key, value in found.items() if key != "steps_per_s"}), flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--roles", nargs="+", default=list(members.BUGS), choices=list(members.BUGS))
    parser.add_argument("--bugs", nargs="+", default=[], help="names of bugs; all without it")
    parser.add_argument("--paces", nargs="+", type=float, default=[members.QUICK, members.SLOW])
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="where ledger and spools are written")
    return smoke.parsed(parser)


if __name__ == "__main__":
    asyncio.run(main(parsed()))
