"""Prompts in, rows out: what is asked how often, and what becomes of completions and verdicts that fail."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from asyncrl.config.run_file import decode
from asyncrl.config.sections import Config
from asyncrl.errors import EngineDied, EngineError, VerifierError
from asyncrl.evaluation.answers import CompletionRow
from asyncrl.evaluation.metrics import evaluation_metrics
from asyncrl.evaluation.offline import OfflineEvaluator, questions
from asyncrl.messages import Prompt, Span
from asyncrl.reward.verifier import Verdict, VerifierInput
from asyncrl.rollout.engine import Completion, Request


class Parrot:
    """An engine: says the prompt's tokens and the seed. Keeps count of what it has in hand."""

    def __init__(self, *faults: EngineError | EngineDied) -> None:
        self.requests: list[Request] = []
        self.most_in_hand = 0
        self._in_hand = 0
        self._faults = list(faults)

    def encode(self, prompt: Prompt) -> list[int]:
        return [int(word) for word in prompt.text.split()]

    def decode(self, token_ids: list[int]) -> str:
        return " ".join(map(str, token_ids))

    async def generate(self, request: Request) -> Completion:
        self.requests.append(request)
        self._in_hand += 1
        self.most_in_hand = max(self.most_in_hand, self._in_hand)
        await asyncio.sleep(0)
        self._in_hand -= 1
        if self._faults:
            raise self._faults.pop()
        written = [*request.prompt_ids, request.seed]
        return Completion(
            completion_ids=written,
            behavior_logprobs=[-1.0] * len(written),
            spans=[Span(0, 0, len(written))],
            finish_reason="stop" if len(written) < 4 else "length",
            generate_s=0.0,
        )


class Judge:
    """A pool: right is what ends in the answer."""

    def __init__(self, *faults: VerifierError) -> None:
        self.samples: list[VerifierInput] = []
        self._faults = list(faults)

    async def judge(self, sample: VerifierInput) -> Verdict:
        self.samples.append(sample)
        if self._faults:
            raise self._faults.pop()
        last = sample.completion.split()[-1]
        correct = float(last == sample.answer)
        return Verdict(2 * correct, {"correct": correct}, last)


def a_config(samples: int = 2, **sections: dict[str, object]) -> Config:
    defaults: dict[str, dict[str, object]] = {
        "model": {"path": "model"},
        "data": {"train": "t", "held_out": "h", "max_prompt_tokens": 4},
        "evaluation": {"samples": samples, "temperature": 0.5, "max_tokens": 8},
        "rollout": {"slots": 2},
    }
    return decode({name: defaults.get(name, {}) | sections.get(name, {}) for name in {**defaults, **sections}})


def examined(
    prompts: Sequence[Prompt],
    engine: Parrot | None = None,
    judge: Judge | None = None,
    config: Config | None = None,
) -> list[CompletionRow]:
    examiner = OfflineEvaluator(config or a_config(), engine or Parrot(), judge or Judge())  # type: ignore[arg-type]
    return asyncio.run(examiner.examine(prompts))


PROMPTS = [
    Prompt(text="10 11", answer="1", data_source="sums"),
    Prompt(text="20 21 22", answer="2", data_source="math"),
]


def test_each_prompt_is_asked_so_often_with_seeds_of_its_own() -> None:
    engine = Parrot()
    rows = examined(PROMPTS, engine)

    assert [(row.place, row.index) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({request.seed for request in engine.requests}) == 4
    (sampling,) = {(r.sampling.temperature, r.sampling.max_tokens) for r in engine.requests}
    assert sampling == (0.5, 8)


def test_the_same_seed_asks_the_same() -> None:
    assert examined(PROMPTS) == examined(PROMPTS)
    other = a_config(run={"seed": 1})
    assert [row.completion for row in examined(PROMPTS, config=other)] != [row.completion for row in examined(PROMPTS)]


def test_a_row_has_what_was_written_and_what_was_made_of_it() -> None:
    judge = Judge()
    row = examined(PROMPTS, judge=judge)[1]

    assert (row.data_source, row.prompt, row.reference, row.completion) == ("sums", "10 11", "1", "10 11 1")
    assert (row.answer, row.reward, row.correct, row.metrics) == ("1", 2.0, 1.0, {"correct": 1.0})
    assert (row.finish_reason, row.num_tokens, row.failure) == ("stop", 3, "")
    sample = next(sample for sample in judge.samples if sample.completion == "10 11 1")
    assert (sample.prompt, sample.answer, sample.data_source, sample.num_tokens) == ("10 11", "1", "sums", 3)


def test_the_engine_is_kept_busy_and_not_flooded() -> None:
    engine = Parrot()
    examined(PROMPTS * 20, engine)

    assert engine.most_in_hand == 2 * 2


def test_every_row_is_told_as_it_is_done() -> None:
    told = Counter[str]()
    examiner = OfflineEvaluator(a_config(), Parrot(), Judge())  # type: ignore[arg-type]
    asyncio.run(examiner.examine(PROMPTS, lambda: told.update(["row"])))

    assert told["row"] == 4


def test_what_may_go_better_is_tried_again() -> None:
    engine, judge = Parrot(EngineError("busy"), EngineError("busy")), Judge(VerifierError("hung", retryable=True))
    rows = examined(PROMPTS[:1], engine, judge, a_config(1))

    assert [row.failure for row in rows] == [""]
    assert (len(engine.requests), len(judge.samples)) == (3, 2)


def test_what_failed_for_good_is_no_answer_and_says_why() -> None:
    engine = Parrot(EngineError("no finite log-probabilities", retryable=False))
    judge = Judge(VerifierError("the function raised"))
    rows = examined(PROMPTS, engine, judge)

    assert sorted(row.failure for row in rows) == ["", "", "no finite log-probabilities", "the function raised"]
    unjudged = next(row for row in rows if row.failure == "the function raised")
    assert unjudged.completion
    assert unjudged.reward is None
    found = evaluation_metrics(questions(rows), 2)
    assert found.metrics["failed"] == 2.0


def test_a_prompt_that_is_too_long_is_cut_only_if_the_run_says_so() -> None:
    engine, long = Parrot(), [Prompt(text="1 2 3 4 5")]
    rows = examined(long, engine)

    assert ["5 tokens" in row.failure for row in rows] == [True, True]
    assert not engine.requests

    examined(long, engine, config=a_config(data={"max_prompt_tokens": 4, "truncation": "left"}))
    assert [request.prompt_ids for request in engine.requests] == [[2, 3, 4, 5]] * 2


def test_an_engine_that_died_ends_it() -> None:
    with pytest.raises(EngineDied, match="gone"):
        examined(PROMPTS, Parrot(EngineDied("gone")))


def test_questions_are_the_prompts_with_their_answers() -> None:
    one, other = questions(examined(PROMPTS))

    assert [one.data_source, other.data_source] == ["sums", "math"]
    assert [(answer.correct, answer.text, answer.is_cut) for answer in one.answers] == [
        (0.0, "0", False),
        (1.0, "1", False),
    ]
    assert [answer.is_cut for answer in other.answers] == [True, True]
