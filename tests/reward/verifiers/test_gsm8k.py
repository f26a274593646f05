"""The number after ####."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.reward.verifier import Sample
from asyncrl.reward.verifiers.gsm8k import TAIL_CHARS, Gsm8k

DATA = Path(__file__).parents[4] / "shared/data/gsm8k/test.jsonl"
STRICT, FLEXIBLE = Gsm8k(), Gsm8k(method="flexible")


def score(verifier: Gsm8k, completion: str, answer: str) -> float:
    return verifier(Sample(completion=completion, answer=answer))


@pytest.mark.parametrize(
    ("completion", "answer", "strict", "flexible"),
    [
        ("9 * 2 = 18\n#### 18", "18", 1.0, 1.0),
        ("#### 18", "9 * 2 = 18\n#### 18", 1.0, 1.0),
        ("#### 17\nno:\n#### 18", "18", 1.0, 1.0),
        ("#### 18\nno:\n#### 17", "18", 0.0, 0.0),
        ("so it is $18.", "18", 0.0, 1.0),
        ("#### $1,234.", "1234", 1.0, 1.0),
        ("#### 1234", "1,234", 1.0, 1.0),
        ("#### -3", "-3", 1.0, 1.0),
        ("#### 3", "-3", 0.0, 0.0),
        ("#### 18.0", "18", 0.0, 0.0),
        ("####18", "18", 0.0, 1.0),
        ("#### eighteen", "18", 0.0, 0.0),
        ("#### 18 apples, 3 left", "18", 1.0, 0.0),
        ("", "18", 0.0, 0.0),
        ("", "", 0.0, 0.0),
        ("#### ", "", 0.0, 0.0),
        ("#### ١٨", "18", 0.0, 0.0),
    ],
)
def test_scores_worked_by_hand(completion: str, answer: str, strict: float, flexible: float) -> None:
    assert score(STRICT, completion, answer) == strict
    assert score(FLEXIBLE, completion, answer) == flexible


def test_only_the_tail_is_searched() -> None:
    assert score(STRICT, "#### 18" + "." * (TAIL_CHARS - 7), "18") == 1.0
    assert score(STRICT, "#### 18" + "." * (TAIL_CHARS - 6), "18") == 0.0


@pytest.mark.parametrize(
    "unit", ["#", "#### ", "1", "1,", "1.", "-", "-$", "#### 1,", "\n", "####", "1.1", "é", "\x00"]
)
def test_a_hostile_megabyte_is_judged_and_pays_nothing(unit: str) -> None:
    hostile = unit * (1_000_000 // len(unit))

    assert score(STRICT, hostile, "18") == 0.0
    assert score(FLEXIBLE, hostile, "18") == 0.0


@given(st.text(), st.integers(-(10**9), 10**9))
def test_whatever_comes_before_a_right_ending_is_right(before: str, answer: int) -> None:
    assert score(STRICT, f"{before}\n#### {answer:,}", str(answer)) == 1.0
    assert score(FLEXIBLE, f"{before}\n#### {answer:,}", str(answer)) == 1.0


@pytest.mark.skipif(not DATA.exists(), reason="the GSM8K test split is not here")
def test_every_reference_solution_scores_one_and_every_mutated_one_zero() -> None:
    solutions = [json.loads(line)["answer"] for line in DATA.read_text(encoding="utf-8").splitlines()]

    assert len(solutions) == 1319
    for solution in solutions:
        answer = solution.rpartition("#### ")[2]
        mutated = re.sub(r"[0-9]$", lambda last: str((int(last[0]) + 1) % 10), solution)
        for verifier in (STRICT, FLEXIBLE):
            assert score(verifier, solution, answer.replace(",", "")) == 1.0
            assert score(verifier, solution, solution) == 1.0
            assert score(verifier, mutated, answer) == 0.0
