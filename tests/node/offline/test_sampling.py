"""Completions and episodes sampled without a broker."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.errors import EngineError, EnvironmentFailed
from asyncrl.messages.trajectory import Prompt, Unit
from asyncrl.node.offline.evaluation import OfflineEvaluator, summarize
from asyncrl.node.offline.sampling import OfflineSampler
from asyncrl.reward.verifier import Verdict, VerifierInput, verdict_of
from asyncrl.reward.verifiers.episode import Episode
from asyncrl.rollout.engine import Completion, Request
from asyncrl.rollout.episodes.episodes import Episodes
from tests.rollout.episodes.stage import StagedEnvironments, WordEngine, WordSeam, ids, words


@dataclass
class Words(WordEngine):
    """The engine of the stage, for prompts too."""

    def encode(self, prompt: Prompt) -> list[int]:
        return ids(f"{prompt.text} <policy>")

    def decode(self, token_ids: list[int]) -> str:
        return words(token_ids)

    async def generate(self, request: Request) -> Completion:
        return await self.sample(request)


class Judge:
    """A pool that takes the environment's word."""

    async def judge(self, inputs: VerifierInput) -> Verdict:
        return verdict_of(Episode()(inputs))


def turn(before: str) -> str:
    return f"turn {before.split().count('<policy>')}"


def unit(place: int, index: int = 0) -> Unit:
    return Unit(place, index, "held_out")


def a_config(samples: int = 2) -> Config:
    return decode(
        {
            "model": {"path": "model"},
            "data": {"train": "t", "held_out": "h", "max_prompt_tokens": 4},
            "sampling": {"max_tokens": 9},
            "evaluation": {"samples": samples, "temperature": 0.5, "max_tokens": 8},
            "environment": {"function": "till.py:Till", "max_turns": 8, "max_tokens": 100},
            "reward": {"function": "episode"},
        }
    )


def episodes_of(config: Config, environments: StagedEnvironments) -> Episodes:
    return Episodes(config.environment, environments, WordSeam(), run="eval")


PROMPT = Prompt(text="how many", answer="3")


def test_without_episodes_one_completion_follows_the_prompt() -> None:
    engine: Any = Words(turn)
    sampled = asyncio.run(OfflineSampler(a_config(), engine).sample(unit(0, 1), PROMPT))
    assert (sampled.text, sampled.turns) == ("turn 1", [])
    assert engine.requests[0].sampling.max_tokens == 8


def test_an_episode_is_played_to_its_end() -> None:
    config, environments = a_config(), StagedEnvironments()
    engine: Any = Words(turn)
    sampler = OfflineSampler(config, engine, episodes_of(config, environments))
    sampled = asyncio.run(sampler.sample(unit(4, 1), PROMPT))
    assert [turn.text for turn in sampled.turns] == ["turn 1", "turn 2", "turn 3"]
    assert (sampled.text, sampled.completion.finish_reason, sampled.scores) == ("turn 3", "stop", {"correct": 1.0})
    assert environments.opened[0].name == "eval/held_out/4/1"
    assert environments.opened[0].is_closed


def test_the_turns_can_be_watched() -> None:
    config = a_config()
    engine: Any = Words(turn)
    episodes, seen = episodes_of(config, StagedEnvironments()), list[int]()

    def watch() -> None:
        if written := episode.written():
            seen.append(len(written.turns))

    episode = OfflineSampler(config, engine, episodes).episode(episodes, unit(0), PROMPT, on_turn=watch)
    asyncio.run(episode.run())
    assert seen == [1, 2, 3]


def test_a_prompt_that_is_too_long_is_refused() -> None:
    engine: Any = Words(turn)
    with pytest.raises(EngineError, match="max_prompt_tokens"):
        asyncio.run(OfflineSampler(a_config(), engine).sample(unit(0), Prompt(text="how many of them are there")))


def evaluated(environments: StagedEnvironments, config: Config) -> Any:
    engine: Any = Words(turn)
    judge: Any = Judge()
    evaluator = OfflineEvaluator(config, engine, judge, episodes=episodes_of(config, environments))
    return asyncio.run(evaluator.evaluate([PROMPT]))


def test_an_evaluation_keeps_turns_and_takes_the_environments_word() -> None:
    config = a_config()
    rows = evaluated(StagedEnvironments(), config)
    assert [(row.reward, row.completion, row.metrics) for row in rows] == [(3.0, "turn 3", {"correct": 1.0})] * 2
    assert [turn["observation"] for turn in rows[0].turns] == ["", "<tool> left 2 <policy>", "<tool> left 1 <policy>"]
    found = summarize(config, rows, 1.0)
    assert (found.turns_mean, found.tokens) == (3.0, 12)


def test_an_environment_that_fails_is_tried_again_and_then_a_failure_of_its_row_alone() -> None:
    once, config = StagedEnvironments(fail_at=2), a_config(samples=1)
    assert [row.reward for row in evaluated(once, config)] == [3.0]
    assert len(once.opened) == 2

    class Broken(StagedEnvironments):
        def open(self, name: str) -> Any:
            raise EnvironmentFailed("it raised ValueError", retryable=False)

    (row,) = evaluated(Broken(), config)
    assert (row.reward, row.failure) == (None, "it raised ValueError")
