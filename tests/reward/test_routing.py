"""Weighted sums of several verifiers."""

import asyncio
import json
import math
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config.sections.reward import Reward, RewardPart
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.catalogue import BUILT_IN, METRICS, resolve
from asyncrl.reward.routing import (
    ROUTES,
    auto_routed,
    check_routes,
    make_verifier,
    metrics_of,
    route,
    unmatched,
    unrouted,
)
from asyncrl.reward.verifier import Verdict, VerifierInput, is_async, verdict_of
from asyncrl.reward.workers.pool import WorkerPool

FUNCTIONS = """
def length(sample):
    return {"score": len(sample.completion), "spaces": sample.completion.count(" "), "answer": "long"}

def broken(sample):
    return float("nan")

async def later(sample):
    return 2.0

def raises(sample):
    return int("x")
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "parts.py"
    path.write_text(FUNCTIONS)
    return str(path)


def judged(inputs: VerifierInput, *parts: RewardPart) -> Verdict:
    return alone(inputs, Reward(parts=list(parts)))


def alone(inputs: VerifierInput, reward: Reward) -> Verdict:
    async def judge() -> Verdict:
        async with WorkerPool(reward) as pool:
            return await pool.judge(inputs)

    return asyncio.run(judge())


def test_the_score_is_the_weighted_sum_and_each_part_a_metric(file: str) -> None:
    accuracy = RewardPart(name="accuracy", function="gsm8k", weight=0.9)
    length = RewardPart(name="length", function=f"{file}:length", weight=-0.01)

    verdict = judged(VerifierInput(completion="#### 4", answer="4"), accuracy, length)

    assert verdict.reward == pytest.approx(0.9 - 0.06)
    assert verdict.metrics == {"accuracy": 1.0, "length": 6.0, "length.spaces": 1.0, "correct": 1.0}
    assert verdict.answer == "4"


def test_the_part_that_is_marked_decides_what_is_correct(file: str) -> None:
    length = RewardPart(name="length", function=f"{file}:length")
    accuracy = RewardPart(name="accuracy", function="gsm8k", weight=0.0, correct=True)

    verdict = judged(VerifierInput(completion="#### 5", answer="4"), length, accuracy)

    assert (verdict.reward, verdict.metrics["correct"], verdict.answer) == (6.0, 0.0, "5")


def test_a_part_is_for_its_data_sources_only(file: str) -> None:
    one = RewardPart(name="one", function="gsm8k", data_sources=["openai/*"])
    other = RewardPart(name="other", function=f"{file}:length", data_sources=["mine"])

    assert judged(VerifierInput(completion="#### 4", answer="4", data_source="mine"), one, other).metrics == {
        "other": 6.0,
        "other.spaces": 1.0,
        "correct": 1.0,
    }
    with pytest.raises(VerifierError, match="no part of the reward is for data_source 'yours'"):
        judged(VerifierInput(completion="", data_source="yours"), one, other)


def test_async_parts_are_awaited_among_plain_ones(file: str) -> None:
    parts = [RewardPart(name="a", function=f"{file}:later"), RewardPart(name="b", function="gsm8k")]

    assert is_async(make_verifier(Reward(parts=parts)))
    assert not is_async(make_verifier(Reward(parts=parts[1:])))
    assert judged(VerifierInput(completion="#### 4", answer="4"), *parts).reward == 3.0


SAID = """
import json

def said(completions, place):
    return [json.loads(text)[place] for text in completions]

async def said_later(completions, place):
    return said(completions, place)

def judged(inputs):
    return None
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("said") / "said.py"
    path.write_text(SAID)
    return str(path)


@given(
    st.lists(
        st.tuples(st.none() | st.floats(-9, 9), st.floats(-2, 2), st.booleans(), st.booleans()), min_size=1, max_size=5
    )
)
def test_parts_that_return_none_are_left_out_of_the_sum_and_counted(
    said: str, found: list[tuple[float | None, float, bool, bool]]
) -> None:
    parts = [
        RewardPart(
            name=f"p{place}",
            function=f"{said}:{'said_later' if is_later else 'said'}",
            options={"place": place},
            weight=weight,
            correct=is_marked,
        )
        for place, (_, weight, is_marked, is_later) in enumerate(found)
    ]
    values = [value for value, *_ in found]
    judge = make_verifier(Reward(parts=parts))
    inputs = VerifierInput(completion=json.dumps(values))
    if set(values) == {None}:
        with pytest.raises(VerifierError, match=r"^every part of the reward abstained \(p0.*\), expected a number"):
            asyncio.run(judge(inputs))
        return
    verdict = verdict_of(asyncio.run(judge(inputs)))
    judging = [(place, *each) for place, each in enumerate(found) if each[0] is not None]
    assert verdict.reward == pytest.approx(math.fsum(value * weight for _, value, weight, *_ in judging))
    decisive = next((value for _, value, _, is_marked, _ in judging if is_marked), judging[0][1])
    assert verdict.metrics == {
        "correct": float(decisive >= 1),
        **{f"p{place}": value for place, value, *_ in judging},
        **{f"p{place}.abstained": float(value is None) for place, value in enumerate(values)},
    }


def test_a_part_of_another_form_that_returns_none_fails(said: str) -> None:
    parts = [RewardPart(name="fine", function="gsm8k"), RewardPart(name="bad", function=f"{said}:judged")]
    with pytest.raises(VerifierError, match="reward part 'bad': the function returned None, expected a finite number"):
        judged(VerifierInput(completion="#### 4", answer="4"), *parts)


def test_a_worker_says_that_every_part_abstained(said: str) -> None:
    parts = [RewardPart(name="a", function=f"{said}:said", options={"place": 0})]
    with pytest.raises(VerifierError, match=r"every part of the reward abstained \(a\), expected a number") as failed:
        judged(VerifierInput(completion="[null]"), *parts)
    assert not failed.value.retryable
    with pytest.raises(
        VerifierError, match=r"^the function of completions returned None for the completion, and nothing"
    ):
        alone(VerifierInput(completion="[null]"), Reward(function=f"{said}:said", options={"place": 0}))


def test_a_part_that_fails_fails_the_whole_verdict_and_is_named(file: str) -> None:
    parts = [RewardPart(name="fine", function="gsm8k"), RewardPart(name="bad", function=f"{file}:broken")]

    with pytest.raises(VerifierError, match="reward part 'bad': the function returned nan"):
        judged(VerifierInput(completion="#### 4", answer="4"), *parts)
    with pytest.raises(VerifierError, match=r"raised ValueError: .*parts\.py:12\)"):
        judged(VerifierInput(completion=""), RewardPart(name="bad", function=f"{file}:raises"))


def test_one_function_is_used_as_it_is() -> None:
    verifier = make_verifier(Reward(function="gsm8k"))

    assert verdict_of(verifier(VerifierInput(completion="#### 4", answer="4"))) == Verdict(1.0, {"correct": 1.0}, "4")


def test_a_part_that_cannot_be_loaded_is_named_by_its_place() -> None:
    with pytest.raises(
        ConfigError, match=r"reward\.parts\[1\]\.function: unknown reward function 'gsm8': did you mean"
    ):
        make_verifier(Reward(parts=[RewardPart(name="a", function="gsm8k"), RewardPart(name="b", function="gsm8")]))


def test_deadlines_of_the_parts_must_add_up_to_less_than_the_timeout() -> None:
    pytest.importorskip("httpx")
    slow = RewardPart(name="a", function="remote", options={"url": "http://x", "deadline_s": 3.0})
    other = RewardPart(name="b", function="remote", options={"url": "http://x", "deadline_s": 3.0})

    make_verifier(Reward(parts=[slow], timeout_s=4.0))
    with pytest.raises(ConfigError, match=r"reward.timeout_s is 4 s, but .* add up to 6 s"):
        make_verifier(Reward(parts=[slow, other], timeout_s=4.0))


# ── test routing ──────────────────────────────────────────────────────────────────────────────
# Routing of rows to verifiers.

SOURCES = ["openai/gsm8k", "aime2024", "mine", "mine"]


@pytest.mark.parametrize(
    ("source", "function"),
    [
        ("openai/gsm8k", "gsm8k"),
        ("lighteval/MATH", "math"),
        ("HuggingFaceH4/MATH-500", "math"),
        ("numina_olympiads", "math"),
        ("math", "math_dapo"),
        ("math_dapo", "math_dapo"),
        ("aime2024", "math_dapo"),
        ("hiyouga/geometry3k", "geo3k"),
        ("taco", "code"),
        ("openai/gsm8k2", None),
        ("MATH", None),
        ("", None),
    ],
)
def test_rows_prepared_for_verl_are_judged_alike(source: str, function: str | None) -> None:
    assert route(source) == function


def test_no_source_fits_two_patterns_and_every_route_is_a_verifier() -> None:
    for pattern in ROUTES:
        source = pattern.replace("*", "x")
        assert [other for other in ROUTES if fnmatchcase(source, other)] == [pattern]
    assert set(ROUTES.values()) <= set(BUILT_IN)


@pytest.mark.parametrize(
    ("reward", "left"),
    [
        (Reward(function="gsm8k"), []),
        (Reward(function="auto"), ["mine"]),
        (Reward(parts=[RewardPart(name="a", function="gsm8k", data_sources=["openai/*"])]), ["aime2024", "mine"]),
        (Reward(parts=[RewardPart(name="a", function="gsm8k")]), []),
        (
            Reward(
                parts=[
                    RewardPart(name="a", function="auto"),
                    RewardPart(name="b", function="exact", data_sources=["mine"]),
                ]
            ),
            ["mine"],
        ),
    ],
)
def test_rows_that_nothing_could_judge_are_named_once(reward: Reward, left: list[str]) -> None:
    assert unrouted(reward, SOURCES) == left


@pytest.mark.parametrize(
    ("reward", "used"),
    [
        (Reward(), ["gsm8k", "math_dapo"]),
        (Reward(function="exact"), []),
        (Reward(parts=[RewardPart(name="a", function="auto", data_sources=["aime*"])]), ["math_dapo"]),
    ],
)
def test_auto_uses_the_verifiers_of_the_data_sources_that_reach_it(reward: Reward, used: list[str]) -> None:
    assert auto_routed(reward, SOURCES) == used


def test_a_dataset_with_such_rows_is_refused_with_advice() -> None:
    part = RewardPart(name="a", function="gsm8k", data_sources=["openai/*"])

    check_routes(Reward(function="gsm8k"), SOURCES)
    with pytest.raises(
        ConfigError, match=r"'opena/gsm8k': .*did you mean 'openai/gsm8k'\? it knows openai/gsm8k, .*taco, .*; set"
    ):
        check_routes(Reward(function="auto"), ["opena/gsm8k"])
    with pytest.raises(
        ConfigError, match=r"no reward is for rows without a data_source: reward.function = 'auto': it k"
    ):
        check_routes(Reward(), [""])
    with pytest.raises(ConfigError, match=r"data_source 'aime2024', 'mine': add it to data_sources of one of"):
        check_routes(Reward(parts=[part]), SOURCES)
    with pytest.raises(ConfigError, match="'4' and 5 more"):
        check_routes(Reward(parts=[part]), map(str, range(10)))


OPTIONS: dict[str, dict[str, str | int]] = {
    "format": {"template": "<a>...</a>"},
    "length": {"max_tokens": 9},
    "overlong": {"max_tokens": 9, "buffer": 2},
}


@pytest.mark.parametrize("name", ["gsm8k", "math", "math_dapo", "geo3k", "exact", "numeric", "format", *OPTIONS])
def test_metrics_of_a_built_in_reward_are_those_of_its_verdicts(name: str) -> None:
    verdict = verdict_of(resolve(name, OPTIONS.get(name))(VerifierInput(completion="#### 1", answer="1")))
    assert set(verdict.metrics) == {"correct", *METRICS[name]}


@pytest.mark.parametrize(
    ("reward", "known"),
    [
        (Reward(function="geo3k"), ["accuracy", "correct", "format", "not_computed"]),
        (Reward(function="auto"), ["correct", "not_computed"]),
        (Reward(function="mine.py:score"), None),
        (Reward(function="remote"), None),
        (Reward(function="gsm8k", group="mine.py:rank"), None),
    ],
)
def test_metrics_are_known_beforehand_unless_a_function_of_the_users_returns_them(
    reward: Reward, known: list[str] | None
) -> None:
    assert metrics_of(reward, ["openai/gsm8k", "lighteval/MATH"]) == known


def test_a_pattern_that_matches_no_row_is_found() -> None:
    parts = [RewardPart(name="a", function="gsm8k", data_sources=["aime*", "math"]), RewardPart(name="b", function="x")]
    assert unmatched(Reward(parts=parts), ["math", "aimo"]) == [("a", "aime*")]
