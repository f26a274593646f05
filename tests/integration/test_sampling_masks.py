"""
Sampling masks on their whole way: engine, wire, check, trainer. Both sides renormalise over the ids the engine kept.
"""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.engine import Completion, Request
from asyncrl.episodes.record import SampledTrajectory
from asyncrl.messages.rollout import Lease
from asyncrl.messages.sound import problem_of
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.token_ids import TokenIds
from asyncrl.messages.trainer import ScoredTrajectory
from asyncrl.messages.trajectory import Prompt, Trajectory, Unit
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.rollout.results import limits_of, to_put_item
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.loop.fetching import limits_of as trainer_limits_of
from asyncrl.trainer.loop.fetching import training_trajectory
from asyncrl.trainer.packing.step import TrainingTrajectory
from tests.integration.conftest import StartRun

PROMPT_IDS = [14, 12, 3, 15, 17]
CUT = {"max_tokens": 20, "temperature": 0.9, "top_p": 0.95, "top_k": 20}
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def a_config(toy: Path, *, replay_mask: bool = True, **sections: Any) -> Config:
    base = {
        "model": {"path": str(toy / "model")},
        "data": {"train": "unused", "max_prompt_tokens": 8},
        "sampling": CUT | {"replay_mask": replay_mask},
        "trainer": {"lr": 0.05},
    }
    return decode(base | sections)


def sample(engine: TransformersEngine, config: Config, num: int = 8) -> list[Completion]:
    async def main() -> list[Completion]:
        sampling = config.sampling.sampling()
        requests = [Request(prompt_ids=PROMPT_IDS, sampling=sampling, seed=seed) for seed in range(num)]
        return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(main())


def through_the_wire(completion: Completion, index: int, config: Config) -> TrainingTrajectory:
    """Trajectory of the trainer, by way of a payload."""
    lease = Lease(
        lease_id=1,
        group_id=0,
        indices=[index],
        split="train",
        prompt=Prompt(text=""),
        sampling=config.sampling.sampling(),
        seed=0,
        max_prompt_tokens=8,
        expires_in_s=60.0,
    )
    unit = Unit(0, index)
    item = to_put_item(
        lease, unit, SampledTrajectory(prompt_ids=PROMPT_IDS, completion=completion), node="r", token_ids=TokenIds(22)
    )
    trajectory = msgspec.msgpack.decode(item.payload, type=Trajectory)
    limits = trainer_limits_of(config, TokenIds(22), step=3)
    assert problem_of(trajectory, unit, item.summary, limits) == ""
    assert limits_of(lease, index, TokenIds(22)).replay_mask == limits.replay_mask
    scored = ScoredTrajectory(unit, SpoolRef("s", 0, 0, 0, 0), float(index % 2), {}, item.summary)
    return training_trajectory(trajectory, scored, limits)


def train(toy: Path, config: Config, version: int = 0) -> tuple[Learner, dict[str, float]]:
    engine = TransformersEngine.load(str(toy / "model"), slots=4, max_tokens_per_slot=32)
    completions = sample(engine, config)
    learner = Learner(config, toy / "model")
    return learner, learner.train([through_the_wire(one, n, config) for n, one in enumerate(completions)], version)


def test_with_their_masks_all_tokens_have_the_sampled_logprobs(toy: Path) -> None:
    metrics = train(toy, a_config(toy))[1]

    assert metrics["logprob_gap_tokens"] == metrics["trained_tokens"] > 20
    assert metrics["logprob_gap_max"] < TOLERANCE
    assert metrics["log_ratio_abs_mean"] < TOLERANCE


def test_without_them_every_ratio_begins_below_one(toy: Path) -> None:
    metrics = train(toy, a_config(toy, replay_mask=False, schedule={"staleness": 0.0}))[1]

    assert metrics["log_ratio_abs_mean"] > 0.01
    assert "logprob_gap_max" not in metrics, "there is nothing to compare"


def test_in_decoupled_mode_the_policy_before_the_step_has_the_masks_too(toy: Path) -> None:
    correction = {"mode": "decoupled", "importance": "token"}
    metrics = train(toy, a_config(toy, algorithm={"correction": correction}))[1]

    for name in ("mean", "max", "min"):
        assert metrics[f"rollout_corr/rollout_is_{name}"] == pytest.approx(1, abs=1e-4)


def test_the_reference_has_the_masks_too_so_equal_policies_have_no_kl(toy: Path) -> None:
    metrics = train(toy, a_config(toy, algorithm={"kl_coef": 0.1, "kl": "k1"}))[1]

    assert metrics["kl_ref"] == pytest.approx(0, abs=TOLERANCE)


def test_the_bytes_of_a_token_are_eight_and_four_for_its_size_and_for_each_id(toy: Path) -> None:
    config = a_config(toy)
    engine = TransformersEngine.load(str(toy / "model"), slots=4, max_tokens_per_slot=32)
    for index, completion in enumerate(sample(engine, config, 3)):
        trajectory = through_the_wire(completion, index, config)
        arrays = ("completion_ids", "behavior_logprobs", "mask_counts", "mask_ids")
        num_bytes = sum(getattr(trajectory, name).nbytes for name in arrays)
        assert num_bytes == 12 * len(completion.completion_ids) + 4 * len(completion.mask_ids)
        np.testing.assert_array_equal(trajectory.mask_ids, completion.mask_ids)


@pytest.mark.long("masks travel from an engine to a step in one process above")
def test_a_run_of_real_processes_replays_them_in_every_step(start_run: StartRun) -> None:
    """Weights are swapped in the middle of completions; tokens of the version in training are compared."""
    finished = start_run("sampling.top_p=0.95", "sampling.top_k=5", "sampling.replay_mask=true", steps=6).end()

    assert finished.code == 0, finished.errors
    gaps = [line["logprob_gap_max"] for line in finished.directory.read_metrics() if "logprob_gap_max" in line]
    assert len(gaps) > 1
    assert max(gaps) < 1e-4
