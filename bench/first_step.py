"""
Seconds from `asyncrl run` to the first step on the screen, by part, beside a bare ``import torch, transformers``.

    python bench/first_step.py [CONFIG] [--set a.b=value] [--rounds 3]

The command and the import take turns, so that the ratio survives a busy machine. The parts, one after the other:

    command   checks and the run directory, until the broker has begun
    imports   until the trainer and all rollouts have joined
    load      until the first version is live
    step      until the first line of a step: an evaluation, a batch, an update
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

import smoke
from run_files import add_run_file, take, written

from asyncrl.config.config import Config
from asyncrl.records.run_directory import RunDirectory

PARTS = ("command", "imports", "load", "step")
ENDS = {"run.started": "command", "node.joined": "imports", "version.live": "load"}
"""Part that an event of a trainer, a rollout or the run ends: the last of its kind, and the first version."""
SETTINGS = ("run.steps=2", "trainer.warmup_steps=0")
ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
"""With bytecode, as everybody has it after a first run."""


def main(options: argparse.Namespace) -> None:
    config = take(options, SETTINGS)
    took: list[dict[str, float]] = []
    imports: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(options.rounds):
            took.append(first_step(config, Path(folder), f"run-{i}"))
            imports.append(bare_import())
    totals = [sum(parts.values()) for parts in took]
    for part in PARTS:
        print_line({"case": part, "ours": round(median(parts[part] for parts in took), 2), "peer": "none"})
    ratio = median(total / bare for total, bare in zip(totals, imports, strict=True))
    peer = {"peer": "import torch, transformers", "peer_value": round(median(imports), 2), "ratio": round(ratio, 2)}
    rounds = [round(total, 2) for total in totals]
    print_line({"case": "first step on the screen", "ours": round(median(totals), 2), "rounds": rounds, **peer})


def first_step(config: Config, folder: Path, name: str) -> dict[str, float]:
    """Seconds of each part of one run."""
    began = time.time()
    command = [sys.executable, "-m", "asyncrl", "run", str(written(config, folder, name))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        shown = next(time.time() for line in process.stdout if line.startswith("step"))
        for _ in process.stdout:
            pass  # until the run has ended
    ends: dict[str, float] = {}
    for event in RunDirectory(folder / name).read_events():
        part = ENDS.get(event["event"])
        if part and event.get("role") not in ("spool", "reward") and not (part == "load" and part in ends):
            ends[part] = datetime.fromisoformat(event["at"]).timestamp()
    times = [began, *(ends[part] for part in PARTS[:-1]), shown]
    return {part: end - start for part, (start, end) in zip(PARTS, pairwise(times), strict=True)}


def bare_import() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch, transformers"], env=ENVIRONMENT, check=True)
    return time.monotonic() - began


def print_line(line: dict[str, object]) -> None:
    print(json.dumps({"bench": "first_step", "unit": "s", "better": "lower", **line}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_file(parser)
    parser.add_argument("--rounds", type=int, default=3)
    main(smoke.parsed(parser))
