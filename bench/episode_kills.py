"""
Kills in the middle of episodes: rollout, environment workers, agent programs, broker and trainer, in each resume mode.

    python bench/episode_kills.py [--modes replay,snapshot,none,solve,command] [--kills 40] [--every 3] [--seed 0]

Each mode is a run of hidden sums whose environment notes every turn that it answers. After the kills the run takes some
more steps and is ended; then the run directory is audited, every file against the ledger, and the turns that were noted
are looked for in the trajectories that were trained. A turn that is not there was thrown away. Nothing may be left:
no process of the run, no folder of a worker.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import smoke
from live_run import ENVIRONMENT, LiveRun
from run_files import CONF, ENDLESS, NEVER, add_run_file, take

from asyncrl.broker.ledger.reader import read_ledger_meta
from asyncrl.cli.inspect import read_audit
from asyncrl.records.run_directory import RunDirectory
from asyncrl.workers import folders

BOXES = str(Path(__file__).parent / "ours" / "noted_boxes.py")
FEW = ("schedule.groups_per_step=4", "schedule.group_size=4", "rollout.episodes=8")
"""A process for each episode: fewer of them."""
MODES: dict[str, tuple[str, ...]] = {
    "replay": (f"environment.function={BOXES}:Replayed",),
    "snapshot": (f"environment.function={BOXES}:Saved",),
    "none": (f"environment.function={BOXES}:Forgotten",),
    "solve": (f"environment.function={BOXES}:solve",),
    "command": ('environment.function=""', f"environment.command={json.dumps([sys.executable, BOXES])}", *FEW),
}
SETTINGS = (
    *ENDLESS,
    "checkpoint.every_steps=5",
    "broker.node_ttl_s=4",
    "rollout.replicas=2",
    "supervisor.window_s=1",
)
WORKER = "episodes/worker/start.py"
NODES = ("rollout-0", "rollout-1", "broker-0", "trainer-0")
STEPS_BEFORE = 2


def main(options: argparse.Namespace) -> None:
    problems = [problem for mode in options.modes for problem in kills_in(mode, options)]
    if problems:
        raise SystemExit("\n".join(problems))


def kills_in(mode: str, options: argparse.Namespace) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (workers := folder / "workers").mkdir()
        ENVIRONMENT.update(EPISODE_NOTES=str(folder / "notes.jsonl"), TMPDIR=str(workers))
        run = LiveRun(folder, take(options, (*SETTINGS, *MODES[mode]), NEVER))
        dice, done = random.Random(options.seed), Counter[str]()
        try:
            run.until(lambda: run.steps_taken() >= STEPS_BEFORE)
            for _ in range(options.kills):
                time.sleep(dice.expovariate(1 / options.every))
                done[kill(run, mode, dice)] += 1
            time.sleep(options.calm)
            wanted = run.steps_taken() + options.steps_after
            run.until(lambda: run.steps_taken() >= wanted)
        except SystemExit:
            print((folder / "run.log").read_text()[-3000:], flush=True)
            raise
        finally:
            run.end()
        return report(mode, run.directory, folder / "notes.jsonl", workers, done)


def kill(run: LiveRun, mode: str, dice: random.Random) -> str:
    """Kill a random process of the run, and return its kind."""
    part = dice.choice((*NODES, "environment", "environment"))
    if part == "environment":
        return kill_environment(run, mode, dice)
    if (pid := run.pid_of(part)) is None:
        return f"{part} (was away)"
    os.kill(pid, signal.SIGKILL)
    return part


def kill_environment(run: LiveRun, mode: str, dice: random.Random) -> str:
    """Kill a worker, or with ``command`` an agent program."""
    wanted = BOXES if mode == "command" else WORKER
    found = [pid for pid in run.processes() if any(part.endswith(wanted) for part in command_of(pid))]
    if not found:
        return "environment (was away)"
    try:
        os.kill(dice.choice(found), signal.SIGKILL)
    except ProcessLookupError:
        return "environment (had ended)"
    return "environment"


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def report(mode: str, directory: RunDirectory, notes: Path, workers: Path, done: Counter[str]) -> list[str]:
    """Print a line of figures, and return the problems found."""
    audit = read_audit(directory.path)
    noted, kept = turns_noted(notes), turns_trained(directory)
    of_trained = {turn for turn in noted if turn[0] in {name for name, _, _ in kept}}
    lost = of_trained - kept
    left = leftovers(read_ledger_meta(directory.ledger).run_id, workers)
    print_line(
        {
            "case": mode,
            "ours": round(1 - len(lost) / max(1, len(of_trained)), 5),
            "unit": "share of finished turns kept",
            "better": "higher",
            "peer": "none",
            "kills": dict(sorted(done.items())),
            "problems": len(audit.problems),
            "left_behind": len(left),
            "steps": audit.steps,
            "skipped": audit.skipped,
            "double_trained": audit.double_trained,
            "turns": len(of_trained),
            "turns_lost": len(lost),
            "reissued": audit.reissued,
            "duplicates": audit.duplicates,
            "tokens_trained": audit.tokens_trained,
            "tokens_thrown_away": audit.tokens_thrown_away,
        }
    )
    return [f"{mode}: {problem}" for problem in (*audit.problems, *left)]


Turn = tuple[str, int, str]
"""Episode without the name of the run, number of the turn, and text."""


def turns_noted(notes: Path) -> set[Turn]:
    found: list[Any] = [json.loads(line) for line in notes.read_text().splitlines()]
    return {(name.partition("/")[2], number, text.strip()) for name, number, text in found}


def turns_trained(directory: RunDirectory) -> set[Turn]:
    kept: set[Turn] = set()
    for file in sorted(directory.samples.glob("step_*.parquet")):
        table = pq.read_table(file, columns=["group_id", "index", "turns"])
        for row in table.to_pylist():
            name = f"train/{row['group_id']}/{row['index']}"
            kept |= {(name, number, turn["text"].strip()) for number, turn in enumerate(row["turns"])}
    return kept


def leftovers(run_id: str, workers: Path) -> list[str]:
    """Processes of the run, and folders of its workers, after it has ended."""
    processes = [f"process {pid} is left" for pid in folders.marked(f"ASYNCRL_RUN={run_id}")]
    return processes + [f"folder {path.name} is left" for path in workers.glob("asyncrl-workers-*/*")]


def print_line(fields: dict[str, object]) -> None:
    print(json.dumps({"bench": "episode_kills", **fields}), flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_file(parser, CONF / "hidden-sums.toml")
    parser.add_argument("--modes", type=lambda text: text.split(","), default=list(MODES))
    parser.add_argument("--kills", type=int, default=40, help="In each mode.")
    parser.add_argument("--every", type=float, default=3.0, help="Mean seconds from one kill to the next.")
    parser.add_argument("--steps-after", type=int, default=5, help="Steps after the last kill.")
    parser.add_argument("--calm", type=float, default=8.0, help="Seconds after the last kill.")
    parser.add_argument("--seed", type=int, default=0)
    return smoke.parsed(parser)


if __name__ == "__main__":
    main(parsed())
