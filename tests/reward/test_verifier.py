"""Conversion of return values to verdicts."""

import re

import pytest

from asyncrl.errors import VerifierError
from asyncrl.reward.verifier import GroupMember, Verdict, VerifierInput, is_async, verdict_of


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (1, Verdict(1.0, {"correct": 1.0})),
        (True, Verdict(1.0, {"correct": 1.0})),
        (0.99, Verdict(0.99, {"correct": 0.0})),
        (-1.0, Verdict(-1.0, {"correct": 0.0})),
        ({"score": 2}, Verdict(2.0, {"correct": 1.0})),
        ({"score": 0.5, "correct": True, "terse": 3, "note": "7"}, Verdict(0.5, {"correct": 1.0, "terse": 3.0})),
        ({"score": 1, "answer": " 7 "}, Verdict(1.0, {"correct": 1.0}, "7")),
        ({"score": 0, "answer": ""}, Verdict(0.0, {"correct": 0.0}, "")),
        ({"score": 0, "pred": "x" * 999}, Verdict(0.0, {"correct": 0.0}, "x" * 200)),
        ({"score": 0, "answer": "\ud800"}, Verdict(0.0, {"correct": 0.0}, "?")),
        ({"score": 0, "answer": None}, Verdict(0.0, {"correct": 0.0})),
        ({"score": -1e6, "\ud800": 1e12}, Verdict(-1e6, {"correct": 0.0, "?": 1e12})),
    ],
)
def test_numbers_and_dicts_with_a_score_are_verdicts(value: object, verdict: Verdict) -> None:
    assert verdict_of(value) == verdict


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None"),
        ("1.0", "'1.0'"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (10**400, "1000"),
        (1j, "1j"),
        ({"accuracy": 1.0}, "{'accuracy': 1.0}"),
        ({"score": None}, "None"),
        ({"score": 1.0, "length": float("inf")}, "metric 'length', returned inf"),
        ("x" * 10_000, "xxx..."),
        (1e308, "returned 1e+308, expected a number of at most 1e+06 either way"),
        (-1.1e6, "returned -1100000.0, expected a number of at most 1e+06 either way"),
        ({"score": 0.0, "loss": 1e13}, "metric 'loss', returned 10000000000000.0"),
        ({"score": 0.0} | {f"m{n}": n for n in range(65)}, "metrics, expected at most 64"),
        ({"score": 0.0, "n" * 101: 1.0}, "a metric's name has 101 characters, expected at most 100"),
        (dict.fromkeys(range(10000), "x" * 100), "expected a number or a dict with 'score'"),
    ],
)
def test_anything_else_is_no_verdict_and_is_shown(value: object, shown: str) -> None:
    with pytest.raises(VerifierError, match=re.escape(shown)) as caught:
        verdict_of(value)

    assert not caught.value.retryable
    assert len(str(caught.value)) < 250


def test_a_number_too_long_to_be_printed_is_only_named() -> None:
    with pytest.raises(VerifierError, match="an enormous int"):
        verdict_of(10**9999)


def test_async_functions_are_told_from_plain_ones() -> None:
    class Later:
        async def __call__(self, inputs: VerifierInput) -> float:
            return 1.0

    async def later(inputs: VerifierInput) -> float:
        return 1.0

    assert is_async(later)
    assert is_async(Later())
    assert not is_async(lambda inputs: 1.0)


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (VerifierInput, set(VerifierInput.__struct_fields__)),
        (GroupMember, set(GroupMember.__struct_fields__) - set(VerifierInput.__struct_fields__)),
    ],
)
def test_help_tells_of_every_field(kind: type[VerifierInput], own: set[str]) -> None:
    lines = (kind.__doc__ or "").splitlines()
    assert {line.split()[0] for line in lines if re.match(r"    \w+  +\S", line)} == own
