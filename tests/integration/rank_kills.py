"""
A run whose trainer loses one rank after another; then every file that it left, and the same run without a loss.

    python -m tests.integration.rank_kills [--kills 20] [--ranks 2] [--resumed-by 3] [--seed 0]

Each kill is a SIGKILL at a random place in load, step, publish or checkpoint: of the first rank, or of the further one
that reaches the place first. Nobody helps the run: it must have all its steps, each trained once, intact checkpoints
and an audit without problems, and end with the weights and moments of the run without kills, bit for bit. Its last
checkpoint must load in transformers, and have the same weights and moments once another number of ranks holds it.

Prints one JSON line.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file
from torch import Tensor

from asyncrl import failpoints
from asyncrl.files.checkpoints import step_folders
from asyncrl.trainer.checkpoints.checkpoint import INDEX, verify
from asyncrl.trainer.checkpoints.checkpoint import begin as begin_checkpoint
from asyncrl.trainer.checkpoints.snapshot import TENSORS, stem_of
from tests.conftest import make_toy
from tests.integration.conftest import ToyRun
from tests.patience import PATIENCE_S
from tests.trainer.rank_processes import PARTIAL, Case

FIRST_LOADING = "first rank while it loads"
"""Has no failpoint: the process is killed once it has started the other ranks."""
FIRST = {
    "load": (FIRST_LOADING,),
    "step": ("trainer.batch_came", "trainer.trained"),
    "publish": ("trainer.staged",),
    "checkpoint": ("trainer.checkpoint_partial", "trainer.checkpoint_written"),
}
"""Places at which the first rank dies, by phase."""
FURTHER = dict(zip(FIRST, ("shard.loading", "shard.training", "shard.gathering", "shard.copying"), strict=True))
"""Places at which the further rank dies that reaches it first."""
LOADING = {FIRST_LOADING, FURTHER["load"]}
STEPS_A_KILL = 3
SETTINGS = (
    # One completion at a time: the others in a decoding batch depend on timing and change the last bits of a log-prob.
    *("staleness=0", "rollout.replicas=1", "rollout.slots=1", "sampling.max_tokens=24"),
    *("checkpoint.every_steps=2", "checkpoint.keep=1000", "evaluation.every_versions=0"),
    *("supervisor.max_restarts=1000", "supervisor.window_s=1"),
)


class Losses:
    """Files of a folder that say where the next rank dies: it dies where one is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        firsts = (place for places in FIRST.values() for place in places if place != FIRST_LOADING)
        self._places = [*firsts, *FURTHER.values()]
        for place in self._places:
            (folder / place).touch()

    @property
    def environment(self) -> dict[str, str]:
        plan = ";".join(f"{place}:1:{self._folder / place}" for place in self._places)
        return {failpoints.VARIABLE: plan}

    def kill(self, run: ToyRun, place: str) -> None:
        """Kill a rank at ``place``, and wait until the trainer has ended. Ranks that die in their load are starting."""
        seen = len(exits(run))
        if place == FIRST_LOADING:
            run.until(lambda: has_started(run, "trainer-0-rank-1"))
            run.kill_node("trainer-0")
        else:
            (self._folder / place).unlink()
        run.until(lambda: len(exits(run)) > seen)


def exits(run: ToyRun) -> list[str]:
    """Cause of each end of the trainer."""
    return [event["cause"] for event in run.happened("node.exited", "trainer-0")]


def has_started(run: ToyRun, node: str) -> bool:
    """True if the process of a node runs under the trainer's, which is not that of an orphan."""
    try:
        first = run.pid_of("trainer-0")
        return f"{run.pid_of(node)}" in Path(f"/proc/{first}/task/{first}/children").read_text().split()
    except (AssertionError, FileNotFoundError):
        return False


def places(number: int, ranks: int, dice: random.Random) -> list[str]:
    """Places of ``number`` kills: of each phase equally often in any order, and of any of the ranks."""
    phases = [list(FIRST)[i % len(FIRST)] for i in range(number)]
    dice.shuffle(phases)
    return [FURTHER[phase] if dice.randrange(ranks) else dice.choice(FIRST[phase]) for phase in phases]


def complete_run(run: ToyRun, steps: int) -> Path:
    """Wait for the end. Every step was trained once, every file is intact. Returns the last checkpoint."""
    assert run.end().code == 0, (run.errors, run.output)
    assert (run.summary.status, run.summary.steps) == ("finished", steps)
    run.assert_adds_up()
    lines = run.directory.read_metrics()
    assert [line["step"] for line in lines] == list(range(steps))
    assert run.summary.trained_tokens == sum(line["tokens"] for line in lines)
    audit = run.audit()
    assert (audit.problems, audit.skipped, audit.double_trained) == ([], 0, 0)
    checkpoints = step_folders(run.directory.checkpoints)
    assert list(checkpoints) == list(range(2, steps + 1, 2))
    for folder in checkpoints.values():
        verify(folder)
    return checkpoints[steps]


def tensors_of(folder: Path) -> dict[str, dict[str, Tensor]]:
    """All tensors of a checkpoint: of the model, and of each other file, by their names."""
    found: dict[str, dict[str, Tensor]] = {}
    for path in (*folder.glob("*.safetensors"), *(folder / TENSORS).glob("*.safetensors")):
        found.setdefault(stem_of(path.name), {}).update(load_file(path))
    return found


def assert_same(found: dict[str, dict[str, Tensor]], wanted: dict[str, dict[str, Tensor]]) -> None:
    """Same tensors, bit for bit."""
    assert found.keys() == wanted.keys()
    for stem, tensors in wanted.items():
        assert found[stem].keys() == tensors.keys(), stem
        differing = [name for name, tensor in tensors.items() if not torch.equal(found[stem][name], tensor)]
        assert not differing, (stem, differing)


def resumed(run: ToyRun, checkpoint: Path, ranks: int, folder: Path) -> dict[str, dict[str, Tensor]]:
    """Tensors of a checkpoint that was loaded, and written again, by another number of ranks."""
    config: dict[str, Any] = tomllib.loads(run.directory.config.read_text())
    config["trainer"]["ranks"] = ranks
    (folder / "run").mkdir()
    (folder / "run" / PARTIAL).symlink_to(checkpoint)
    begin_checkpoint(folder / "again", 1)
    case = Case("again", ranks, config, str(checkpoint), seed=0, resumes="run")
    (folder / "cases.json").write_bytes(msgspec.json.encode([case]))
    command = [sys.executable, "-m", "tests.trainer.rank_processes", str(folder), str(ranks)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return tensors_of(folder / "again" / PARTIAL)


def assert_exports(run: ToyRun, checkpoint: Path, out: Path) -> None:
    """`asyncrl export` writes a directory from which transformers loads the checkpoint's weights."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    exporting = run.beside("-m", "asyncrl", "export", str(run.directory.path), "--out", str(out))
    _, errors = exporting.communicate(timeout=PATIENCE_S)
    assert exporting.returncode == 0, errors
    assert (out / INDEX).exists(), "several parts"
    model = AutoModelForCausalLM.from_pretrained(out)
    weights = tensors_of(checkpoint)["model"]
    loaded = model.state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in weights.items())
    assert len(AutoTokenizer.from_pretrained(out)) == model.config.vocab_size


def lose_ranks(folder: Path, toy: Path, *, kills: int, ranks: int, resumed_by: int, seed: int) -> dict[str, Any]:
    """One run with kills and one without, and all that must be true of them; returns figures."""
    steps = STEPS_A_KILL * kills + 2 + kills % 2
    wanted = places(kills, ranks, random.Random(seed))
    for name in ("calm", "killed", "losses", "again"):
        (folder / name).mkdir()
    calm = ToyRun(folder / "calm", toy, *SETTINGS, f"trainer.ranks={ranks}", steps=steps)
    try:
        expected = tensors_of(complete_run(calm, steps))
    finally:
        calm.kill()
    began_s, losses = time.monotonic(), Losses(folder / "losses")
    run = ToyRun(
        folder / "killed", toy, *SETTINGS, f"trainer.ranks={ranks}", steps=steps, environment=losses.environment
    )
    try:
        for place in wanted:
            if place not in LOADING:
                run.until_next_step()
            losses.kill(run, place)
        checkpoint = complete_run(run, steps)
        seconds = time.monotonic() - began_s
        assert_same(tensors_of(checkpoint), expected)
        assert_exports(run, checkpoint, folder / "exported")
        assert_same(resumed(run, checkpoint, resumed_by, folder / "again"), expected)
        lost = exits(run)
    finally:
        run.kill()
    assert len(lost) == kills, lost
    return {
        "kills": dict(sorted(Counter(wanted).items())),
        "ranks_killed": dict(sorted(Counter(rank_of(cause) for cause in lost).items())),
        "steps": steps,
        "seconds": round(seconds, 1),
    }


def rank_of(cause: str) -> str:
    """The rank that was killed, by the cause of the end of the trainer."""
    if cause == "was killed by SIGKILL":
        return "rank 0"
    named = re.fullmatch(r"exited with 75: trainer-0-rank-(\d) was killed by SIGKILL", cause)
    assert named, cause
    return f"rank {named[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--resumed-by", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "toy").mkdir()
        (folder / "run").mkdir()
        figures = lose_ranks(folder / "run", make_toy(folder / "toy"), **vars(options))
    line = {"bench": "rank_kills", "case": f"{options.ranks} ranks", "ours": 0, "unit": "problems", "better": "lower"}
    sys.stdout.write(json.dumps({**line, **figures}) + "\n")


if __name__ == "__main__":
    main()
