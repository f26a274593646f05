"""
Adding a rollout to a running run and draining it again: throughput gained, time to join and to leave, longest step.

    python bench/joiner.py [CONFIG] [--set a.b=value] [--steps 12]

The run uses a model with random weights on the data of the quickstart. The bench measures trained tokens per second
over ``--steps`` steps with one rollout, with two rollouts, and with one rollout again. The joining time starts when the
second rollout's process starts (so it includes Python's imports and loading the model); ``hello_s`` ends at its Hello,
``ours`` at the first step that trained on one of its trajectories. Comparing ``longest_step_s`` of joining and leaving
with that of the other phases shows if the run had to wait.
"""

import argparse
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import pyarrow.parquet as pq
import smoke
from live_run import PATIENCE_S, LiveRun
from msgspec import structs
from run_files import ENDLESS, NEVER, add_run_file, take, toy

from asyncrl.cli.inspect import read_audit

SETTINGS = (
    *ENDLESS,
    "rollout.replicas=1",
    "rollout.slots=8",  # small batches make sampling the bottleneck, which is the reason to add a rollout
    "schedule.groups_per_step=8",
)
SIZES = ("--hidden-size", "64", "--intermediate-size", "192", "--head-dim", "16")
"""Options for a model as large as the quickstart's."""
JOINER = "joiner"


class Pace:
    """Throughput and step times of one phase, from lines of metrics."""

    def __init__(self, lines: list[dict[str, float]]) -> None:
        self.tokens_per_s = sum(line["tokens"] for line in lines[1:]) / (lines[-1]["time_s"] - lines[0]["time_s"])
        steps_s = [later["time_s"] - line["time_s"] for line, later in pairwise(lines)]
        self.step_s, self.longest_step_s = median(steps_s), max(steps_s)


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = take(options, SETTINGS, NEVER)
        if not options.smoke:  # whose model is random already
            # A random model never emits the end token, so every completion has 128 tokens.
            toy("random", f"{folder}/model", "--text", config.data.train_files[0], *SIZES)
            config = structs.replace(config, model=structs.replace(config.model, path=f"{folder}/model"))
        run = LiveRun(Path(folder), config)
        try:
            report(run, options.steps)
        finally:
            run.end()
        audit = read_audit(run.directory.path)
    line("tokens lost", sum(audit.tokens_thrown_away.values()), "tokens", "lower", problems=len(audit.problems))


def report(run: LiveRun, steps: int) -> None:
    """Measure and print the three phases and the two transitions between them."""
    address_at = run.directory.address
    run.until(lambda: run.steps_taken() >= 4)
    alone = phase(run, steps)
    first = run.steps_taken()
    started_s = time.monotonic()
    address = address_at.read_text().strip()
    joiner = run.start_process("asyncrl.cli.node", "--role", "rollout", "--name", JOINER, "--broker", address)
    joined_s = run.until(lambda: run.starts_of(JOINER) > 0) - started_s
    useful_s = run.until(lambda: has_trained_on(run, first)) - started_s
    joining = Pace(run.directory.read_metrics()[first - 1 :])
    both = phase(run, steps)
    first = run.steps_taken()
    drained_s = time.monotonic()
    drain = run.start_process("asyncrl", "drain", str(run.directory.path), JOINER)
    code = drain.wait(PATIENCE_S) or joiner.wait(PATIENCE_S)
    drained_s = time.monotonic() - drained_s
    after = phase(run, steps)
    leaving = Pace(run.directory.read_metrics()[first - 1 : first + steps])
    line("one rollout", alone.tokens_per_s, "tokens/s", "higher", longest_step_s=alone.longest_step_s)
    line(
        "two rollouts", both.tokens_per_s, "tokens/s", "higher",
        peer="one rollout", peer_value=alone.tokens_per_s, longest_step_s=both.longest_step_s,
    )  # fmt: skip
    line("one rollout again", after.tokens_per_s, "tokens/s", "higher", longest_step_s=after.longest_step_s)
    line(
        "joining",
        useful_s,
        "s to a step with its work",
        "lower",
        hello_s=joined_s,
        longest_step_s=joining.longest_step_s,
    )
    line(
        "leaving",
        drained_s,
        "s from asyncrl drain to its exit",
        "lower",
        code=code,
        longest_step_s=leaving.longest_step_s,
    )


def phase(run: LiveRun, steps: int) -> Pace:
    """Measure the next ``steps`` steps."""
    first = run.steps_taken()
    run.until(lambda: run.steps_taken() > first + steps)
    return Pace(run.directory.read_metrics()[first : first + steps + 1])


def has_trained_on(run: LiveRun, first_step: int) -> bool:
    """True if one of the last three recorded steps after ``first_step`` contains a trajectory of the joiner."""
    files = sorted(run.directory.samples.glob("*.parquet"))[first_step:]
    return any(JOINER in pq.read_table(file, columns=["node"])["node"].to_pylist() for file in files[-3:])


def line(case: str, ours: float, unit: str, better: str, **fields: object) -> None:
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in fields.items()}
    if isinstance(peer_value := fields.get("peer_value"), float):
        rounded["ratio"] = round(ours / peer_value, 2)
    print(
        json.dumps({"bench": "joiner", "case": case, "ours": round(ours, 2), "unit": unit, "better": better} | rounded)
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_file(parser)
    parser.add_argument("--steps", type=int, default=12, help="number of steps in each phase")
    return smoke.parsed(parser)


if __name__ == "__main__":
    main(parsed())
