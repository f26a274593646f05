"""
Five steps are the same however they are computed: ranks, copies of the model, ranks that share rows, what is on the
host, what is recomputed and where experts are, in all combinations, for a dense model and a mixture of experts.

    python -m tests.trainer.ranks.test_invariance FOLDER      all of them, in minutes; prints the largest differences

The slow test takes a sample of them. AdamW divides by a root: with a small ``eps`` the sign of a gradient near zero
decides a step, so that parameters would differ where nothing else does.
"""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from asyncrl.config.run_file import decode
from asyncrl.trainer.checkpoints.checkpoint import begin
from asyncrl.trainer.learner import Learner
from tests.conftest import make_vision_model
from tests.trainer.rank_processes import Case, trajectories_for

STEPS, SEED = 5, 3
NUM_SAMPLED = 24
EXPERTS = 6
"""Of the mixture; parallel ones are spread evenly."""
LIMIT_S = 1800.0
TOLERANCE = 1e-5
COMPARED = ("loss", "grad_norm", "entropy", "kl_ref")
Way = dict[str, Any]
"""Settings of the trainer, and ``kind``: ``dense`` or ``experts``."""


def ways() -> Iterator[Way]:
    """All combinations that are not refused, but for one rank alone with nothing special."""
    offloads: tuple[list[str], ...] = ([], ["parameters"], ["moments"], ["moments", "activations"])
    axes = itertools.product(
        ("dense", "experts"), (1, 2, 3, 4), (0, 1, 2), (1, 2), offloads, (False, True, "selective"), (False, True)
    )
    for kind, ranks, shard_size, sharing, offload, checkpointing, parallel in axes:
        shards = shard_size or ranks
        is_possible = ranks % shards == 0 and ranks % sharing == 0 and (shard_size == 0 or shards < ranks)
        if parallel:
            is_possible &= kind == "experts" and shards > 1 and EXPERTS % shards == 0 and "parameters" not in offload
        if is_possible and (checkpointing or "activations" not in offload):
            yield {
                "kind": kind,
                "ranks": ranks,
                "shard_size": shard_size,
                "sequence_parallel": sharing,
                "offload": offload,
                "gradient_checkpointing": checkpointing,
                "expert_parallel": parallel,
            }


def name(way: Way) -> str:
    return "-".join("+".join(value) if isinstance(value, list) else str(value) for value in way.values())


def settings(way: Way) -> dict[str, Any]:
    trainer = {key: value for key, value in way.items() if key != "kind"}
    tokens = 72 // way["sequence_parallel"]
    return {
        "model": {"path": "unused"},
        "data": {"train": "unused", "max_prompt_tokens": 16},
        "sampling": {"max_tokens": 20},
        "trainer": trainer | {"lr": 1e-2, "eps": 1e-2, "grad_clip": 0.5, "max_tokens_per_micro_batch": tokens},
        "algorithm": {"kl_coef": 0.1, "entropy_coef": 0.01},
    }


def trained(folder: Path, chosen: list[Way], models: dict[str, Path]) -> None:
    """Take the steps in each of these ways, by one process and its forks."""
    cases = [
        Case(name(way), way["ranks"], settings(way), str(models[way["kind"]]), seed=SEED, num_steps=STEPS)
        for way in chosen
    ]
    for case in cases:
        begin(folder / case.name, 1)
    (folder / "cases.json").write_bytes(msgspec.json.encode(cases))
    most = max(way["ranks"] for way in chosen)
    command = [sys.executable, "-m", "tests.trainer.rank_processes", str(folder), str(most)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr


def expected(kind: str, models: dict[str, Path], **trainer: Any) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Metrics of the last step and the weights after it, of one rank with nothing special."""
    plain: Way = {"kind": kind, "ranks": 1, "sequence_parallel": 1, **trainer}
    learner = Learner(decode(settings(plain)), models[kind])
    for number in range(STEPS):
        metrics = learner.train(trajectories_for(learner, SEED + number))
    return metrics, {key: weight.clone() for key, weight in learner.named_weights()}


def difference(folder: Path, way: Way, metrics: dict[str, float], weights: dict[str, torch.Tensor]) -> dict[str, float]:
    """Largest difference of the metrics, relative to them or to 1, and of a weight."""
    found = msgspec.json.decode((folder / f"{name(way)}.metrics").read_bytes())
    published = load_file(folder / f"{name(way)}.published")
    assert published.keys() == weights.keys()
    return {
        "metrics": max(abs(found[key] - metrics[key]) / max(1.0, abs(metrics[key])) for key in COMPARED),
        "weights": max(float((published[key] - weight).abs().max()) for key, weight in weights.items()),
    }


@pytest.mark.long("a minute of one core; test_ranks.py takes single steps")
def test_five_steps_are_the_same_however_they_are_computed(tmp_path, model_path, even_experts_path):
    models = {"dense": model_path, "experts": even_experts_path}
    chosen = Random(0).sample(list(ways()), NUM_SAMPLED)
    trained(tmp_path, chosen, models)
    of_one = {kind: expected(kind, models) for kind in models}
    for way in chosen:
        found = difference(tmp_path, way, *of_one[way["kind"]])
        assert max(found.values()) < TOLERANCE, (way, found)


@pytest.mark.long("a minute of one core; test_ranks.py takes single steps")
@pytest.mark.parametrize("freeze_vision", [False, True])
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_five_steps_with_pictures_are_the_same_however_they_are_computed(tmp_path, family, freeze_vision):
    """Also where a rank's part of a row has pictures and another's has none."""
    models = {"pictures": tmp_path / "model"}
    make_vision_model(models["pictures"], family)
    chosen = [
        {"kind": "pictures", "sequence_parallel": 1, "freeze_vision": freeze_vision, **way}
        for way in (
            {"ranks": 2},
            {"ranks": 3, "gradient_checkpointing": True},
            {"ranks": 2, "sequence_parallel": 2},
            {"ranks": 4, "sequence_parallel": 2, "shard_size": 2, "gradient_checkpointing": "selective"},
            {"ranks": 2, "offload": ["parameters"]},
            {"ranks": 2, "offload": ["moments", "activations"], "gradient_checkpointing": True},
        )
    ]
    trained(tmp_path, chosen, models)
    of_one = expected("pictures", models, freeze_vision=freeze_vision)
    for way in chosen:
        found = difference(tmp_path, way, *of_one)
        assert max(found.values()) < TOLERANCE, (way, found)


def test_the_sample_has_each_setting_of_each_axis() -> None:
    everything, chosen = list(ways()), Random(0).sample(list(ways()), NUM_SAMPLED)
    for axis in everything[0]:
        assert {str(way[axis]) for way in chosen} == {str(way[axis]) for way in everything}


def main(folder: Path) -> None:
    """``folder`` has two models, ``dense`` and ``experts``, for what the ways have in common."""
    models = {kind: folder / kind for kind in ("dense", "experts")}
    chosen = list(ways())
    trained(folder, chosen, models)
    worst = {"metrics": 0.0, "weights": 0.0}
    for kind in models:
        of_one = expected(kind, models)
        for way in (way for way in chosen if way["kind"] == kind):
            found = difference(folder, way, *of_one)
            worst = {key: max(worst[key], found[key]) for key in worst}
    sys.stdout.write(json.dumps({"ways": len(chosen), "steps": STEPS, **worst}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
