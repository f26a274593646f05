"""
Sampler, trainer, vLLM's side, export and evaluation of one model have the same token ids, wherever its tokens stand.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from asyncrl.algo.logprobs import REMOVED
from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.engine import Completion, Request
from asyncrl.episodes.record import SampledTrajectory
from asyncrl.errors import EngineError
from asyncrl.messages.rollout import Lease
from asyncrl.messages.sound import NEVER_SAMPLED, problem_of
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.token_ids import UNKNOWN, TokenIds
from asyncrl.messages.trainer import ScoredTrajectory
from asyncrl.messages.trajectory import Prompt, Trajectory, TrajectoryLimits, Unit
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.rollout.engines.vllm import checkpoint as of_vllm
from asyncrl.rollout.results import to_put_item
from asyncrl.runtime.rollout import load_engine
from asyncrl.trainer.checkpoints.checkpoint import read_manifest
from asyncrl.trainer.checkpoints.export import export
from asyncrl.trainer.checkpoints.writer import PromptFiles
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.loop.fetching import limits_of, training_trajectory
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.weights.contents.token_ids import load_tokenizer
from tests.trainer.checkpoints.writing import write
from tests.weights.contents.tokenizer_shapes import FILES, NUM_ROWS, NUM_WORDS, SHAPES, Files, make_model_directory

PROMPT_IDS = [3, 5, 7]
NUM_COMPLETIONS, MAX_TOKENS = 24, 40
TEMPERATURE = 5.0
"""So high that each token that has a probability is drawn."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def a_config(model: Path) -> Config:
    return decode(
        {
            "model": {"path": str(model)},
            "data": {"train": "unused", "max_prompt_tokens": 8},
            "sampling": {"max_tokens": MAX_TOKENS, "temperature": TEMPERATURE},
        }
    )


def an_engine(model: Path) -> TransformersEngine:
    """The sampler of a run with this model, and of `asyncrl eval`."""
    engine = load_engine(a_config(model))
    assert isinstance(engine, TransformersEngine)
    return engine


def sample(engine: TransformersEngine, config: Config) -> list[Completion]:
    async def main() -> list[Completion]:
        sampling = config.sampling.sampling()
        requests = [Request(prompt_ids=PROMPT_IDS, sampling=sampling, seed=seed) for seed in range(NUM_COMPLETIONS)]
        try:
            return list(await asyncio.gather(*map(engine.generate, requests)))
        finally:
            await engine.aclose()

    return asyncio.run(main())


def stored(completion: Completion, token_ids: TokenIds, config: Config) -> Trajectory:
    """What a rollout that knows these ids stores of a completion."""
    lease = Lease(1, 0, [0], "train", Prompt(), config.sampling.sampling(), 0, 8, 60.0)
    sampled = SampledTrajectory(prompt_ids=PROMPT_IDS, completion=completion)
    item = to_put_item(lease, Unit(0, 0), sampled, node="r", token_ids=token_ids)
    return msgspec.msgpack.decode(item.payload, type=Trajectory)


def taken(trajectory: Trajectory, limits: TrajectoryLimits) -> TrainingTrajectory:
    summary: Any = None
    return training_trajectory(
        trajectory, ScoredTrajectory(trajectory.unit, SpoolRef("s", 0, 0, 0, 0), 0.0, {}, summary), limits
    )


def scores(learner: Learner, trajectories: list[TrainingTrajectory]) -> list[float]:
    found = learner.policy.score(collate(trajectories, device=torch.device("cpu")), temperature=TEMPERATURE)
    return found.logprobs.tolist()


def drawn_with_the_log_probs_of_the_trainer(engine: TransformersEngine, learner: Learner, config: Config) -> set[int]:
    """Ids that the sampler draws, after their log-probs were compared."""
    completions, limits = sample(engine, config), limits_of(config, learner.token_ids, 0)
    trajectories = [stored(one, engine.token_ids, config) for one in completions]
    assert {problem_of(one, one.unit, None, limits) for one in trajectories} == {""}
    found = scores(learner, [taken(one, limits) for one in trajectories])
    expected = [logprob for one in completions for logprob in one.behavior_logprobs]
    assert np.abs(np.subtract(found, expected)).max() < 1e-4
    return {token_id for one in completions for token_id in one.completion_ids}


@pytest.mark.parametrize("name", SHAPES)
def test_sampler_trainer_vllm_export_and_evaluation_have_the_same_ids_and_log_probs(tmp_path: Path, name: str) -> None:
    path = make_model_directory(tmp_path / "model", SHAPES[name], seed=len(name))
    config = a_config(path)
    learner, engine = Learner(config, path), an_engine(path)
    folder = write(
        tmp_path, step=1, policy_version=1, frontier={}, snapshot=learner.snapshot(), tokenizer=PromptFiles(path)
    )
    export(folder, read_manifest(folder), tmp_path / "exported", card="")
    ids = {
        "sampler": engine.token_ids,
        "trainer": learner.token_ids,
        "resumed trainer": Learner(config, folder).token_ids,
        "export": Learner(config, tmp_path / "exported").token_ids,
        "evaluation": an_engine(tmp_path / "exported").token_ids,
        "vLLM": of_vllm.read(str(path), load_tokenizer(str(path)), "float32").token_ids,
    }
    assert set(ids.values()) == {learner.token_ids}, ids

    drawn = drawn_with_the_log_probs_of_the_trainer(engine, learner, config)
    assert drawn == set(range(learner.token_ids.vocab_size)) - set(learner.token_ids.never)
    assert (max(drawn) >= NUM_WORDS) == (name != "tokenizer.json alone")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FILES)
def test_whatever_the_files_say_sampler_and_trainer_have_the_same_ids_and_log_probs(files: Files) -> None:
    with TemporaryDirectory() as folder:
        path = make_model_directory(Path(folder), files, seed=len(files))
        learner, engine = Learner(a_config(path), path), an_engine(path)
        assert engine.token_ids == learner.token_ids
        drawn = drawn_with_the_log_probs_of_the_trainer(engine, learner, a_config(path))
        assert drawn.isdisjoint(learner.token_ids.without_probability(NUM_ROWS))


@pytest.mark.parametrize("where", ["a hole", "beyond the tokenizer"])
def test_a_token_without_a_probability_leaves_no_rollout_and_is_trained_by_no_trainer(
    tmp_path: Path, where: str
) -> None:
    path = make_model_directory(tmp_path, SHAPES["a hole in the vocabulary"])
    config = a_config(path)
    learner = Learner(config, path)
    token_id = {"a hole": 6, "beyond the tokenizer": NUM_ROWS - 1}[where]
    whole = sample(an_engine(path), config)[0]
    damaged = msgspec.structs.replace(whole, completion_ids=[token_id, *whole.completion_ids[1:]])
    cause = NEVER_SAMPLED if where == "a hole" else "token id outside the vocabulary"

    with pytest.raises(EngineError, match=f"{cause}: completion id {token_id} at position 0"):
        stored(damaged, learner.token_ids, config)
    hostile = stored(damaged, UNKNOWN, config)
    problem = problem_of(hostile, hostile.unit, None, limits_of(config, learner.token_ids, 0))
    assert problem.startswith(f"{cause}: completion id {token_id} at position 0, expected ")
    unchecked = taken(hostile, limits_of(config, UNKNOWN, 0))
    assert scores(learner, [unchecked])[0] < REMOVED / 10, "what the check keeps from being trained"
