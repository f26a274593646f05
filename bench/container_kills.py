"""
Kills in the middle of episodes with containers: rollout, broker, environment workers, and clients of the runtime.

    python bench/container_kills.py [--kills 200] [--every 2] [--seed 0] [--runtime podman]

Hidden sums whose state is a file in the container of each episode, saved after each turn. After the kills the run takes
some more steps and is ended. Then the run directory is audited, every turn that was answered is looked for in what was
trained, and a minute later nothing may be left: no container, volume, network or image of a snapshot, no process.

Without ``--runtime`` the runtime is the stand-in of the tests, whose containers are real processes.
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

import smoke
from episode_kills import SETTINGS, WORKER, command_of, leftovers, turns_noted, turns_trained
from live_run import ENVIRONMENT, LiveRun
from run_files import CONF, NEVER, add_run_file, take

from asyncrl.broker.ledger.reader import read_ledger_meta
from asyncrl.cli.inspect import read_audit

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.workers import container_runtime  # noqa: E402  beside the package, as benches are

ENVIRONMENTS = str(Path(__file__).parent / "ours" / "noted_files.py")
FEW = ("schedule.groups_per_step=2", "schedule.group_size=4", "rollout.episodes=8")
"""A container for each episode: fewer of them."""
KINDS = ("rollout-0", "rollout-1", "broker-0", "environment", "client", "client")
NOTHING_LEFT_S = 60.0
STEPS_BEFORE = 1


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (workers := folder / "workers").mkdir()
        runtime = options.runtime or container_runtime.runtime(folder)
        image = options.image if options.runtime else container_runtime.IMAGE
        ENVIRONMENT.update(EPISODE_NOTES=str(folder / "notes.jsonl"), TMPDIR=str(workers))
        container = {"runtime": runtime, "image": image, "workdir": "/", "warm": 2, "snapshot": "turn"}
        settings = [f"environment.container.{key}={value}" for key, value in container.items()]
        settings += ["environment.call_s=60", f"environment.function={ENVIRONMENTS}:Filed", *FEW]
        run = LiveRun(folder, take(options, (*SETTINGS, *settings), NEVER))
        dice, done = random.Random(options.seed), Counter[str]()
        try:
            run.until(lambda: run.steps_taken() >= STEPS_BEFORE)
            while done.total() < options.kills:
                time.sleep(dice.expovariate(1 / options.every))
                if kind := kill(run, runtime, dice):
                    done[kind] += 1
            time.sleep(options.calm)
            wanted = run.steps_taken() + options.steps_after
            run.until(lambda: run.steps_taken() >= wanted)
        except SystemExit:
            print((folder / "run.log").read_text()[-3000:], flush=True)
            raise
        finally:
            run.end()
        ended = time.monotonic()
        run_id = read_ledger_meta(run.directory.ledger).run_id
        while left := [*owned(runtime), *leftovers(run_id, workers)]:
            if time.monotonic() > ended + NOTHING_LEFT_S:
                break
            time.sleep(0.5)
        audit = read_audit(run.directory.path)
        noted, kept = turns_noted(folder / "notes.jsonl"), turns_trained(run.directory)
        trained = {name for name, _, _ in kept}
        wrong = [text for _, number, text in noted if number < 0]
        of_trained = {turn for turn in noted if turn[0] in trained and turn[1] >= 0}
        lost = of_trained - kept
        line = {
            "bench": "container_kills", "case": "snapshot", "ours": round(1 - len(lost) / max(1, len(of_trained)), 5),
            "unit": "share of finished turns kept", "better": "higher", "peer": "none",
            "kills": dict(sorted(done.items())),
            "left_behind": len(left), "gone_after_s": round(time.monotonic() - ended, 1), "steps": audit.steps,
            "problems": len(audit.problems), "turns": len(of_trained), "turns_lost": len(lost),
            "wrong_files": len(wrong),
            "tokens_trained": audit.tokens_trained, "tokens_thrown_away": audit.tokens_thrown_away,
        }  # fmt: skip
        print(json.dumps(line), flush=True)
        if problems := [*audit.problems, *left, *wrong]:
            raise SystemExit("\n".join(map(str, problems)))


def kill(run: LiveRun, runtime: str, dice: random.Random) -> str:
    """Kill a random process of the run, and return its kind; empty if there was none of it."""
    kind = dice.choice(KINDS)
    if kind not in ("environment", "client"):
        found = [pid] if (pid := run.pid_of(kind)) else []
    else:
        # A client of the stand-in is Python, which runs its file; a real one has its name in its first argument.
        words = {"environment": WORKER, "client": str(container_runtime.STAND_IN)}[kind]
        names = (words,) if kind == "environment" else (words, runtime)
        commands = {pid: command_of(pid) for pid in run.processes()}
        found = [
            pid
            for pid, command in commands.items()
            if "monitor" not in command and any(word.endswith(names) for word in command)
        ]
    if not found:
        return ""
    try:
        os.kill(dice.choice(found), signal.SIGKILL)
    except ProcessLookupError:
        return ""
    return kind


def owned(runtime: str) -> list[str]:
    """All that carries the label of an owner in this runtime."""
    import asyncio

    from asyncrl.workers.containers import runtime_of

    return [f"{one.kind} {one.id} is left" for one in asyncio.run(runtime_of(runtime).owned())]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_file(parser, CONF / "hidden-sums.toml")
    parser.add_argument("--runtime", default="", help="A real runtime, such as podman.")
    parser.add_argument("--image", default="docker.io/library/debian:stable-slim", help="For a real runtime.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--every", type=float, default=2.0, help="Mean seconds from one kill to the next.")
    parser.add_argument("--steps-after", type=int, default=2, help="Steps after the last kill.")
    parser.add_argument("--calm", type=float, default=8.0, help="Seconds after the last kill.")
    parser.add_argument("--seed", type=int, default=0)
    return smoke.parsed(parser)


if __name__ == "__main__":
    main(parsed())
