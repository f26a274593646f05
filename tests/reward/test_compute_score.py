"""verl's reward functions are called with verl's arguments, and answered like any verifier."""

import asyncio
from typing import Any

import pytest

from asyncrl.errors import ConfigError
from asyncrl.reward.compute_score import adapt, is_compute_score
from asyncrl.reward.verifier import Verdict, Verifier, VerifierInput, is_async, verdict_of

INPUTS = VerifierInput(completion="it is 4", answer="4", data_source="sums", extra={"split": "train"})


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, Any]:
    return {"score": -1.0, "acc": ground_truth in solution_str, "pred": f"{data_source} {extra_info['split']}"}


def short(solution_str: str, ground_truth: str, method: str = "strict") -> float:
    return float(method == "flexible" and ground_truth in solution_str)


def adapted(function: Any, **options: Any) -> Verifier:
    return adapt(function, options, path="my.py:score", setting="reward.function")


async def awaited(verifier: Verifier) -> Any:
    return await verifier(INPUTS)


def test_functions_are_told_by_their_arguments() -> None:
    assert is_compute_score(compute_score)
    assert is_compute_score(short)
    assert not is_compute_score(lambda inputs: 0.0)
    assert not is_compute_score(print)


def test_all_four_arguments_are_given_by_name_and_acc_is_the_accuracy() -> None:
    assert verdict_of(adapted(compute_score)(INPUTS)) == Verdict(-1.0, {"correct": 1.0, "acc": 1.0}, "sums train")


def test_a_function_of_fewer_arguments_gets_those_it_takes_and_its_options() -> None:
    assert verdict_of(adapted(short, method="flexible")(INPUTS)).reward == 1.0
    assert verdict_of(adapted(short)(INPUTS)).reward == 0.0


def test_a_function_that_takes_anything_gets_all_four() -> None:
    def takes_the_rest(solution_str: str, ground_truth: str, **kwargs: Any) -> float:
        return float(sorted(kwargs) == ["data_source", "extra_info"])

    assert adapted(takes_the_rest)(INPUTS) == 1.0


def test_an_async_function_stays_async() -> None:
    async def asked(solution_str: str, ground_truth: str) -> dict[str, Any]:
        return {"score": 0.5, "acc": 1}

    verifier = adapted(asked)
    assert is_async(verifier)
    assert verdict_of(asyncio.run(awaited(verifier))).metrics["correct"] == 1.0


def test_an_awaitable_of_a_sync_function_is_awaited() -> None:
    async def later() -> float:
        return 0.25

    def asked(solution_str: str, ground_truth: str) -> Any:
        return later()

    assert asyncio.run(awaited(adapted(asked))) == 0.25


def test_further_arguments_and_unknown_options_are_refused() -> None:
    def needs_more(solution_str: str, ground_truth: str, tokenizer: Any) -> float:
        return 0.0

    with pytest.raises(ConfigError, match="called as verl calls it, with solution_str, ground_truth: missing"):
        adapted(needs_more)
    with pytest.raises(ConfigError, match="unexpected keyword argument 'metod'"):
        adapted(short, metod="strict")
