"""Offline evaluation: requests, rows, retries and failures."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.engine import Completion, Request
from asyncrl.episodes.episodes import Episodes
from asyncrl.errors import EngineDied, EngineError, EnvironmentFailed, VerifierError
from asyncrl.messages.trajectory import Image, Prompt, Span, Unit
from asyncrl.records.evaluation_files import CompletionRow
from asyncrl.reward.verifier import Verdict, VerifierInput, verdict_of
from asyncrl.reward.verifiers.rules import EpisodeReward
from asyncrl.runtime.offline import OfflineEvaluator, OfflineSampler, summarize
from tests.episodes.stage import StagedEnvironments, WordBoundary, WordEngine, ids, words


class Parrot:
    """An engine whose completion is the prompt's tokens and the seed; counts concurrent requests."""

    def __init__(self, *faults: EngineError | EngineDied) -> None:
        self.requests: list[Request] = []
        self.most_running = 0
        self._running = 0
        self._faults = list(faults)

    def encode(self, prompt: Prompt) -> list[int]:
        return [int(word) for word in prompt.text.split()]

    def decode(self, token_ids: list[int]) -> str:
        return " ".join(map(str, token_ids))

    async def generate(self, request: Request) -> Completion:
        self.requests.append(request)
        self._running += 1
        self.most_running = max(self.most_running, self._running)
        await asyncio.sleep(0)
        self._running -= 1
        if self._faults:
            raise self._faults.pop()
        assert request.seed is not None, "an evaluation is seeded"
        written = [*request.prompt_ids, request.seed]
        return Completion(
            completion_ids=written,
            behavior_logprobs=[-1.0] * len(written),
            spans=[Span(0, 0, len(written))],
            finish_reason="stop" if len(written) < 4 else "length",
            generate_s=0.0,
        )


class Judge:
    """A pool: a completion is right if it ends in the answer."""

    def __init__(self, *faults: VerifierError) -> None:
        self.inputs: list[VerifierInput] = []
        self._faults = list(faults)

    async def judge(self, inputs: VerifierInput) -> Verdict:
        self.inputs.append(inputs)
        if self._faults:
            raise self._faults.pop()
        last = inputs.completion.split()[-1]
        correct = float(last == inputs.answer)
        return Verdict(2 * correct, {"correct": correct}, last)


def a_config(samples: int = 2, **sections: dict[str, object]) -> Config:
    defaults: dict[str, dict[str, object]] = {
        "model": {"path": "model"},
        "data": {"train": "t", "held_out": "h", "max_prompt_tokens": 4},
        "evaluation": {"samples": samples, "temperature": 0.5, "max_tokens": 8},
        "rollout": {"slots": 2},
    }
    return decode({name: defaults.get(name, {}) | sections.get(name, {}) for name in {**defaults, **sections}})


def evaluated(
    prompts: Sequence[Prompt],
    engine: Parrot | None = None,
    judge: Judge | None = None,
    config: Config | None = None,
) -> list[CompletionRow]:
    evaluator = OfflineEvaluator(config or a_config(), engine or Parrot(), judge or Judge())  # type: ignore[arg-type]
    return asyncio.run(evaluator.evaluate(prompts))


def test_a_request_has_the_files_of_its_pictures_and_the_first_row_of_a_prompt_shows_them() -> None:
    image = Image(bytes(32), 24, 16, 3)
    engine = Parrot()
    fake_engine: Any = engine
    judge: Any = Judge()
    evaluator = OfflineEvaluator(a_config(), fake_engine, judge, {image.digest: b"red"}.__getitem__)
    rows = asyncio.run(evaluator.evaluate([Prompt(text="10 11", answer="1", images=[image])]))
    assert [request.images for request in engine.requests] == [(b"red",)] * 2
    assert [cell["bytes"] for row in rows for cell in row.images] == [b"red", None]


PROMPTS = [
    Prompt(text="10 11", answer="1", data_source="sums"),
    Prompt(text="20 21 22", answer="2", data_source="math"),
]


def test_each_completion_has_a_seed_of_its_own() -> None:
    engine = Parrot()
    rows = evaluated(PROMPTS, engine)

    assert [(row.place, row.index) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({request.seed for request in engine.requests}) == 4
    (sampling,) = {(r.sampling.temperature, r.sampling.max_tokens) for r in engine.requests}
    assert sampling == (0.5, 8)


def test_the_same_run_seed_gives_the_same_rows() -> None:
    assert evaluated(PROMPTS) == evaluated(PROMPTS)
    other = a_config(run={"seed": 1})
    assert [row.completion for row in evaluated(PROMPTS, config=other)] != [
        row.completion for row in evaluated(PROMPTS)
    ]


def test_a_row_has_the_completion_and_its_verdict() -> None:
    judge = Judge()
    row = evaluated(PROMPTS, judge=judge)[1]

    assert (row.data_source, row.prompt, row.reference, row.completion) == ("sums", "10 11", "1", "10 11 1")
    assert (row.answer, row.reward, row.correct, row.metrics) == ("1", 2.0, 1.0, {"correct": 1.0})
    assert (row.finish_reason, row.num_tokens, row.failure) == ("stop", 3, "")
    inputs = next(inputs for inputs in judge.inputs if inputs.completion == "10 11 1")
    assert (inputs.prompt, inputs.answer, inputs.data_source, inputs.num_tokens) == ("10 11", "1", "sums", 3)


def test_the_engine_is_kept_busy_and_not_flooded() -> None:
    engine = Parrot()
    evaluated(PROMPTS * 20, engine)

    assert engine.most_running == 2 * 2


def test_every_row_is_reported_when_it_is_done() -> None:
    done = Counter[str]()
    evaluator = OfflineEvaluator(a_config(), Parrot(), Judge())  # type: ignore[arg-type]
    asyncio.run(evaluator.evaluate(PROMPTS, lambda: done.update(["row"])))

    assert done["row"] == 4


def test_retryable_errors_are_retried() -> None:
    engine, judge = Parrot(EngineError("busy"), EngineError("busy")), Judge(VerifierError("hung", retryable=True))
    rows = evaluated(PROMPTS[:1], engine, judge, a_config(1))

    assert [row.failure for row in rows] == [""]
    assert (len(engine.requests), len(judge.inputs)) == (3, 2)


def test_a_completion_that_failed_for_good_has_a_reason_and_no_verdict() -> None:
    engine = Parrot(EngineError("no finite log-probabilities", retryable=False))
    judge = Judge(VerifierError("the function raised"))
    rows = evaluated(PROMPTS, engine, judge)

    assert sorted(row.failure for row in rows) == ["", "", "no finite log-probabilities", "the function raised"]
    unjudged = next(row for row in rows if row.failure == "the function raised")
    assert unjudged.completion
    assert unjudged.reward is None
    assert summarize(a_config(), rows, 1.0).overall.metrics["failed"] == 2.0


def test_a_prompt_that_is_too_long_is_cut_only_if_the_run_says_so() -> None:
    engine, long = Parrot(), [Prompt(text="1 2 3 4 5")]
    rows = evaluated(long, engine)

    assert ["5 tokens" in row.failure for row in rows] == [True, True]
    assert not engine.requests

    evaluated(long, engine, config=a_config(data={"max_prompt_tokens": 4, "truncation": "left"}))
    assert [request.prompt_ids for request in engine.requests] == [[2, 3, 4, 5]] * 2


def test_an_engine_that_died_ends_the_evaluation() -> None:
    with pytest.raises(EngineDied, match="gone"):
        evaluated(PROMPTS, Parrot(EngineDied("gone")))


def test_a_summary_has_the_metrics_of_each_source_and_the_sampling_parameters() -> None:
    found = summarize(a_config(), evaluated(PROMPTS), 1.23456)

    assert (found.samples, found.temperature, found.max_tokens, found.wall_s) == (2, 0.5, 8, 1.235)
    assert found.tokens == 2 * 3 + 2 * 4
    sums, math = found.by_source["sums"], found.by_source["math"]
    assert (sums.accuracy, sums.metrics["truncated"], math.metrics["truncated"]) == (0.5, 0.0, 1.0)
    assert (found.overall.num_prompts, found.overall.metrics["length_mean"]) == (2, 3.5)


# ── test sampling ─────────────────────────────────────────────────────────────────────────────
# Completions and episodes sampled without a broker.


@dataclass
class Words(WordEngine):
    """The engine of the stage, for prompts too."""

    def encode(self, prompt: Prompt) -> list[int]:
        return ids(f"{prompt.text} <policy>")

    def decode(self, token_ids: list[int]) -> str:
        return words(token_ids)

    async def generate(self, request: Request) -> Completion:
        return await self.sample(request)


class JudgeSampling:
    """A pool that takes the environment's word."""

    async def judge(self, inputs: VerifierInput) -> Verdict:
        return verdict_of(EpisodeReward()(inputs))


def turn(before: str) -> str:
    return f"turn {before.split().count('<policy>')}"


def unit(place: int, index: int = 0) -> Unit:
    return Unit(place, index, "held_out")


def sampling_a_config(samples: int = 2) -> Config:
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
    return Episodes(config.environment, environments, WordBoundary(), run="eval")


PROMPT = Prompt(text="how many", answer="3")


def test_without_episodes_one_completion_follows_the_prompt() -> None:
    engine: Any = Words(turn)
    sampled = asyncio.run(OfflineSampler(sampling_a_config(), engine).sample(unit(0, 1), PROMPT))
    assert (sampled.text, sampled.turns) == ("turn 1", [])
    assert engine.requests[0].sampling.max_tokens == 8


def test_an_episode_is_played_to_its_end() -> None:
    config, environments = sampling_a_config(), StagedEnvironments()
    engine: Any = Words(turn)
    sampler = OfflineSampler(config, engine, episodes_of(config, environments))
    sampled = asyncio.run(sampler.sample(unit(4, 1), PROMPT))
    assert [turn.text for turn in sampled.turns] == ["turn 1", "turn 2", "turn 3"]
    assert (sampled.text, sampled.completion.finish_reason, sampled.scores) == ("turn 3", "stop", {"correct": 1.0})
    assert environments.opened[0].name == "eval/held_out/4/1"
    assert environments.opened[0].is_closed


def test_the_turns_can_be_watched() -> None:
    config = sampling_a_config()
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
        asyncio.run(
            OfflineSampler(sampling_a_config(), engine).sample(unit(0), Prompt(text="how many of them are there"))
        )


def sampling_evaluated(environments: StagedEnvironments, config: Config) -> Any:
    engine: Any = Words(turn)
    judge: Any = JudgeSampling()
    evaluator = OfflineEvaluator(config, engine, judge, episodes=episodes_of(config, environments))
    return asyncio.run(evaluator.evaluate([PROMPT]))


def test_an_evaluation_keeps_turns_and_takes_the_environments_word() -> None:
    config = sampling_a_config()
    rows = sampling_evaluated(StagedEnvironments(), config)
    assert [(row.reward, row.completion, row.metrics) for row in rows] == [(3.0, "turn 3", {"correct": 1.0})] * 2
    assert [turn["observation"] for turn in rows[0].turns] == ["", "<tool> left 2 <policy>", "<tool> left 1 <policy>"]
    found = summarize(config, rows, 1.0)
    assert (found.turns_mean, found.tokens) == (3.0, 12)


def test_an_environment_that_fails_is_tried_again_and_then_a_failure_of_its_row_alone() -> None:
    once, config = StagedEnvironments(fail_at=2), sampling_a_config(samples=1)
    assert [row.reward for row in sampling_evaluated(once, config)] == [3.0]
    assert len(once.opened) == 2

    class Broken(StagedEnvironments):
        def open(self, name: str) -> Any:
            raise EnvironmentFailed("it raised ValueError", retryable=False)

    (row,) = sampling_evaluated(Broken(), config)
    assert (row.reward, row.failure) == (None, "it raised ValueError")
