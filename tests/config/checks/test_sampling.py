"""Sampling with which the trajectories of a group cannot differ is answered with one sentence."""

from typing import Any

import pytest

from asyncrl.config.checks.check import advice
from tests.config.configs import made, refused

EQUAL = (
    "sampling is greedy or nearly so, and trajectories of a group are all equal; use a temperature and top_p of at "
    "least 0.01, and not top_k = 1"
)


@pytest.mark.parametrize(
    ("sampling", "cause"),
    [
        ({"temperature": 0.0}, "temperature is 0"),
        ({"temperature": 1e-9}, "temperature is 1e-09"),
        ({"temperature": 1e-300}, "temperature is 1e-300"),
        ({"temperature": 0.0099}, "temperature is 0.0099"),
        ({"top_p": 1e-9}, "top_p is 1e-09"),
        ({"top_k": 1, "replay_mask": True}, "top_k is 1"),
    ],
)
def test_training_on_trajectories_that_are_all_equal_is_refused(sampling: dict[str, Any], cause: str) -> None:
    assert refused(sampling=sampling, schedule={"staleness": 0}) == f"sampling.{cause}: {EQUAL}"


@pytest.mark.parametrize(
    ("evaluation", "sentence"),
    [
        (
            {"temperature": 1e-9},
            "evaluation.temperature is 1e-09: such values are not sampled alike by all engines; use 0, which is "
            "greedy, or at least 0.01",
        ),
        (
            {"samples": 4},
            "evaluation.samples is 4, but evaluation.temperature is 0: greedy completions of a prompt are all equal; "
            "sample with a temperature above 0, or use one sample",
        ),
        (
            {"samples": 4, "temperature": 1.0, "top_k": 1},
            "evaluation.samples is 4, but evaluation.top_k is 1: greedy completions of a prompt are all equal; "
            "sample with a temperature above 0, or use one sample",
        ),
        (
            {"samples": 4, "temperature": 1.0, "top_p": 1e-9},
            "evaluation.samples is 4, but evaluation.top_p is 1e-09: greedy completions of a prompt are all equal; "
            "sample with a temperature above 0, or use one sample",
        ),
        ({"top_p": 0.9}, "evaluation.top_p is only read with a temperature above 0; remove it"),
    ],
)
def test_an_evaluation_that_cannot_be_sampled_as_it_says_is_refused(evaluation: dict[str, Any], sentence: str) -> None:
    assert refused(evaluation=evaluation) == sentence


def test_an_empty_stop_text_is_refused() -> None:
    assert refused(sampling={"stop": ["END", ""]}) == (
        "sampling.stop has an empty text, which would end every completion; remove it"
    )


@pytest.mark.parametrize(
    ("sampling", "cause"),
    [
        ({"temperature": 0.01}, "temperature is 0.01"),
        ({"temperature": 0.0999}, "temperature is 0.0999"),
        ({"top_p": 0.01, "replay_mask": True}, "top_p is 0.01"),
        ({"temperature": 0.1}, ""),
        ({"top_p": 0.1, "top_k": 2, "replay_mask": True}, ""),
    ],
)
def test_trajectories_that_hardly_differ_are_advised_against(sampling: dict[str, Any], cause: str) -> None:
    expected = f"sampling.{cause}: trajectories of a group are nearly the same, and a run learns from their differences"
    assert advice(made(sampling=sampling)) == ([expected] if cause else [])


def test_a_greedy_evaluation_of_one_sample_is_legal() -> None:
    made(evaluation={"temperature": 0.0})
    made(evaluation={"temperature": 1.0, "top_k": 1})
