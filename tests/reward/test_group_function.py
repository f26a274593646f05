"""A group function: what it gets, what it may return, and what becomes of it when it fails."""

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.sections.reward import Reward
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.routing import make_group_function
from asyncrl.reward.verifier import GroupMember, Verdict, VerifierInput, group_member, verdicts_of
from asyncrl.reward.workers.pool import WorkerPool

FUNCTIONS = """
import os, time

def score(sample):
    if sample.completion == "slow":
        time.sleep(60)
    return {"score": 0.0, "correct": sample.completion == sample.answer, "answer": sample.completion}

def rank(members, *, best=1.0):
    match members[0].completion:
        case "raise":
            raise RuntimeError("no idea")
        case "hang":
            while True:
                time.sleep(1)
        case "short":
            return [0.0]
        case "nan":
            return [0.0] * (len(members) - 1) + [float("nan")]
        case "die":
            os._exit(9)
        case "pause":
            time.sleep(0.5)
    order = sorted(len(member.completion) for member in members)
    return [{"score": best * order.index(len(member.completion)), "seen": member.reward} for member in members]

async def rank_async(members):
    return rank(members)

def no_list(members):
    return 1.0

def two(one, other):
    return [0.0]
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("functions") / "judge.py"
    path.write_text(FUNCTIONS)
    return path


def members(*completions: str) -> list[GroupMember]:
    verdict = Verdict(0.0, {"correct": 0.0}, "4")
    return [group_member(VerifierInput(completion=text, answer="4"), verdict) for text in completions]


def judged(
    path: Path, *groups: Sequence[str], group: str = "rank", timeout_s: float = 10.0
) -> list[list[Verdict] | BaseException]:
    """Outcome of each group; all are judged concurrently."""
    reward = Reward(function=f"{path}:score", group=f"{path}:{group}", timeout_s=timeout_s)

    async def judge() -> list[list[Verdict] | BaseException]:
        async with WorkerPool(reward) as pool:
            calls = (pool.judge_group(members(*completions)) for completions in groups)
            return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(judge())


@pytest.mark.parametrize("group", ["rank", "rank_async"])
def test_each_failure_fails_its_whole_group_and_no_other(functions: Path, group: str) -> None:
    groups = (["a", "bb"], ["raise", "b"], ["nan", "b"], ["short", "b"], ["hang", "b"], ["ccc", "b"], ["die", "b"])
    first, *failed, last, died = judged(functions, *groups, group=group, timeout_s=0.3)

    assert isinstance(first, list)
    assert isinstance(last, list)
    assert [verdict.reward for verdict in first] == [0.0, 1.0]
    assert [verdict.reward for verdict in last] == [1.0, 0.0]
    causes = (
        "raised RuntimeError: no idea",
        "returned nan",
        "1 verdicts on 2 trajectories",
        "0.6 s",
        "code 9",
    )
    failed.append(died)
    for error, cause in zip(failed, causes, strict=True):
        assert isinstance(error, VerifierError)
        assert cause in str(error)
    assert [error.retryable for error in failed if isinstance(error, VerifierError)] == [True, False, False, True, True]


def test_a_group_has_the_time_of_a_verdict_for_each_of_its_members(functions: Path) -> None:
    in_time, too_late = judged(functions, ["pause", *"abcdefgh"], ["pause"], timeout_s=0.2)
    assert isinstance(in_time, list)
    assert isinstance(too_late, VerifierError)


def test_a_slow_verdict_beside_a_group_has_no_more_time_than_alone(functions: Path) -> None:
    reward = Reward(function=f"{functions}:score", group=f"{functions}:rank", timeout_s=0.3)

    async def judge() -> tuple[object, object]:
        async with WorkerPool(reward) as pool:
            slow = pool.judge(VerifierInput(completion="slow"))
            return await asyncio.gather(pool.judge_group(members("a", "bb")), slow, return_exceptions=True)

    group, slow = asyncio.run(judge())
    assert isinstance(group, list)
    assert isinstance(slow, VerifierError)
    assert "no verdict within 0.3 s" in str(slow)


# ── what it returns ───────────────────────────────────────────────────────────────────────────


def test_the_verdict_of_the_function_stays_beside_that_of_the_group() -> None:
    verdict = Verdict(0.25, {"correct": 1.0, "terse": 0.5}, "4")
    one, other = (group_member(VerifierInput(completion=text), verdict) for text in "ab")
    assert verdicts_of([2.0, {"score": -1.0, "correct": False, "terse": 3}], [one, other]) == [
        Verdict(2.0, {"correct": 1.0, "terse": 0.5, "pointwise": 0.25}, "4"),
        Verdict(-1.0, {"correct": 0.0, "terse": 3.0, "pointwise": 0.25}, "4"),
    ]


@pytest.mark.parametrize("made", [tuple, lambda values: __import__("numpy").array(values)])
def test_any_sequence_of_numbers_will_do(made: Callable[[list[float]], object]) -> None:
    assert [verdict.reward for verdict in verdicts_of(made([0.5, 1.5]), members("a", "b"))] == [0.5, 1.5]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (1.0, "returned 1.0, expected a list with a number or a dict for each of 2 trajectories"),
        (None, "returned None, expected a list"),
        ({"score": 1.0}, "expected a list"),
        ("ab", "expected a list"),
        ([1.0, 2.0, 3.0], "returned 3 verdicts on 2 trajectories; expected one for each, in their order"),
        ([1.0, math.inf], "returned inf"),
        ([1.0, {"wins": 2}], "expected a number or a dict with 'score'"),
        ([1.0, {"score": 1.0} | {f"m{i}": 1.0 for i in range(63)}], "with those of reward.function"),
    ],
)
def test_anything_else_is_no_verdict(value: object, problem: str) -> None:
    with pytest.raises(VerifierError, match=problem):
        verdicts_of(value, members("a", "b"))


def test_a_metric_that_would_hide_the_functions_own_reward_is_refused() -> None:
    verdict = Verdict(0.25, {"correct": 1.0, "pointwise": 0.5})
    with pytest.raises(VerifierError, match=r"reward\.function returned the metric 'pointwise'"):
        verdicts_of([1.0], [group_member(VerifierInput(completion="a"), verdict)])


# ── loading ───────────────────────────────────────────────────────────────────────────────────


def test_without_a_group_function_there_is_none() -> None:
    assert make_group_function(Reward()) is None


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("rnak", {}, "did you mean 'rank'"),
        ("two", {}, "is called with one argument, the list of members .*: write def rank"),
        ("rank", {"worst": 1.0}, "the list of members and the options worst"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_at_the_start(
    functions: Path, name: str, options: dict[str, str | int | float | bool], problem: str
) -> None:
    with pytest.raises(ConfigError, match=rf"reward\.group.*{problem}"):
        make_group_function(Reward(group=f"{functions}:{name}", group_options=options))


def test_its_options_are_bound(functions: Path) -> None:
    function = make_group_function(Reward(group=f"{functions}:rank", group_options={"best": 3.0}))
    assert function is not None
    values: Any = function(members("a", "bb"))
    assert [value["score"] for value in values] == [0.0, 3.0]


@pytest.mark.parametrize(
    ("reward", "problem"),
    [
        (Reward(group="rank"), "reward.group is 'rank', expected path/to/file.py:name"),
        (Reward(group_options={"a": 1}), "reward.group_options is only read with reward.group"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(reward: Reward, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        reward.check()
