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
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from asyncrl.cli.inspect import audit_of
from asyncrl.observe.run_directory import RunDirectory

QUICKSTART = Path(__file__).parent.parent / "conf" / "quickstart.toml"
SETTINGS = {
    "run.steps": "1000000",
    "run.name": '"killed"',
    "rollout.replicas": "1",
    "checkpoint.every_steps": "5",
    "evaluation.every_versions": "0",
    "evaluation.at_start": "false",
    "evaluation.at_end": "false",
    "supervisor.window_s": "1",  # each kill is the first
    "trainer.lr": "1e-6",  # so many steps at a learning rate that is meant for forty would end in nonsense
}
ROLES = ("rollout", "reward", "trainer", "broker")
PACE_STEPS = 10
"""Steps between a recovery and the next kill."""
LOOK_S = 0.03
PATIENCE_S = 120.0


class Victim:
    """One `asyncrl run`."""

    def __init__(self, directory: Path, config: Path, overrides: list[str]) -> None:
        settings = [f"{key}={value}" for key, value in {**SETTINGS, "run.dir": json.dumps(str(directory))}.items()]
        command = [sys.executable, "-m", "asyncrl", "run", str(config)]
        for setting in (*settings, *overrides):
            command += ["--set", setting]
        self.directory = RunDirectory(directory / "killed")
        with (directory / "run.log").open("w") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )

    def steps_taken(self) -> int:
        """Optimizer steps, repeated ones too."""
        repeated = sum(event["event"] == "step.repeated" for event in self._events())
        return repeated + (len(self.directory.read_metrics()) if self.directory.metrics.exists() else 0)

    def starts_of(self, node: str) -> int:
        """How often a node has come; of the broker, how often it has begun to serve."""
        if node.startswith("broker"):
            return sum(event["event"] in ("run.started", "run.resumed") for event in self._events())
        return sum(event["event"] == "node.joined" and event["node"] == node for event in self._events())

    def kill(self, node: str) -> None:
        """As the kernel would that has run out of memory."""
        for pid in self._tree():
            if node.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
                return
        raise SystemExit(f"no process plays {node}")

    def until(self, condition: Callable[[], bool]) -> float:
        """When it came to be, by the monotonic clock."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"the run ended or hangs: see {self.directory.path}")
            time.sleep(LOOK_S)
        return time.monotonic()

    def end(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)

    def _events(self) -> list[dict[str, object]]:
        return self.directory.read_events() if self.directory.events.exists() else []

    def _tree(self) -> list[int]:
        found = [self._process.pid]
        for pid in found:
            found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return found


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        victim = Victim(Path(folder), options.config, options.overrides)
        try:
            took = {role: [recovery(victim, f"{role}-0") for _ in range(options.kills)] for role in options.roles}
        finally:
            victim.end()
        audit = audit_of(victim.directory.path)
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
            "peer": "none",
        }
    )
    if audit.problems:
        raise SystemExit("\n".join(audit.problems))


def recovery(victim: Victim, node: str) -> tuple[float, float]:
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
