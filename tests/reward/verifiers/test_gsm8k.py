"""GSM8K: the number after ####."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import VerifierError
from asyncrl.reward.verifier import VerifierInput, verdict_of
from asyncrl.reward.verifiers.gsm8k import TAIL_CHARS, Gsm8k

DATA = Path(__file__).parents[4] / "shared/data/gsm8k/test.jsonl"
STRICT, FLEXIBLE = Gsm8k(), Gsm8k(method="flexible")


def score(verifier: Gsm8k, completion: str, answer: str) -> float:
    return verdict_of(verifier(VerifierInput(completion=completion, answer=answer))).reward


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
        ("#### −3", "-3", 1.0, 1.0),
        ("#### −3", "3", 0.0, 0.0),
        ("#### .18", "0.18", 1.0, 1.0),
        ("#### 0.18", ".18", 1.0, 1.0),
        ("it is .18", "0.18", 0.0, 1.0),
        ("it is .18", "18", 0.0, 0.0),
        ("#### -$.18", "-0.18", 1.0, 1.0),
        ("so...18", "18", 0.0, 1.0),
        ("#### 1.18", "0.18", 0.0, 0.0),
        ("#### 18.0", "18", 0.0, 0.0),
        ("####18", "18", 0.0, 1.0),
        ("#### eighteen", "18", 0.0, 0.0),
        ("#### 18 apples, 3 left", "18", 1.0, 0.0),
        ("", "18", 0.0, 0.0),
        ("#### ١٨", "18", 0.0, 0.0),
    ],
)
def test_scores_worked_by_hand(completion: str, answer: str, strict: float, flexible: float) -> None:
    assert score(STRICT, completion, answer) == strict
    assert score(FLEXIBLE, completion, answer) == flexible


@pytest.mark.parametrize("answer", ["", " ", "worked, but #### "])
def test_a_row_without_an_answer_is_an_error_and_not_a_zero(answer: str) -> None:
    with pytest.raises(VerifierError, match="no answer"):
        score(STRICT, "#### 18", answer)


def test_only_the_tail_is_searched() -> None:
    assert score(STRICT, "#### 18" + "." * (TAIL_CHARS - 7), "18") == 1.0
    assert score(STRICT, "#### 18" + "." * (TAIL_CHARS - 6), "18") == 0.0


@pytest.mark.parametrize(
    "unit", ["#", "#### ", "1", "1,", "1.", "-", "-$", "#### 1,", "\n", "####", "1.1", "é", "\x00", ".", ".1"]
)
def test_a_hostile_megabyte_is_judged_and_not_rewarded(unit: str) -> None:
    hostile = unit * (1_000_000 // len(unit))

    assert score(STRICT, hostile, "18") == 0.0
    assert score(FLEXIBLE, hostile, "18") == 0.0


@given(st.text(), st.integers(-(10**9), 10**9))
def test_whatever_comes_before_a_right_ending_is_right(before: str, answer: int) -> None:
    assert score(STRICT, f"{before}\n#### {answer:,}", str(answer)) == 1.0
    assert score(FLEXIBLE, f"{before}\n#### {answer:,}", str(answer)) == 1.0


def mutations(answer: str, other: str) -> list[str]:
    """Wrong answers that look like the right one, which is a whole number without commas."""
    sign, digits = ("-", answer[1:]) if answer.startswith("-") else ("", answer)
    swaps = [
        sign + digits[:place] + digits[place + 1] + digits[place] + digits[place + 2 :]
        for place in range(len(digits) - 1)
        if digits[place] != digits[place + 1]
    ]
    replaced = [sign + digits[:-1] + str((int(digits[-1]) + shift) % 10) for shift in (1, 5, 9)]
    longer = [answer + "0", answer + "7", sign + "1" + digits, answer + ".5", answer + ".05"]
    garbage = [answer + ",000", sign + "9," + digits, answer + ",1", answer + ",,,7"]
    signs = [digits if sign else "-" + digits, "-$" + digits if not sign else "$" + digits]
    return [str(int(answer) + 1), str(int(answer) - 1), *swaps, *replaced, *longer, *garbage, *signs, other]


@pytest.mark.skipif(not DATA.exists(), reason="the GSM8K test split is not here")
def test_every_reference_solution_scores_one_and_every_mutated_one_zero() -> None:
    solutions = [json.loads(line)["answer"] for line in DATA.read_text(encoding="utf-8").splitlines()]
    answers = [solution.rpartition("#### ")[2].replace(",", "") for solution in solutions]

    assert len(solutions) == 1319
    for row, (solution, answer) in enumerate(zip(solutions, answers, strict=True)):
        other = next(text for text in answers[row + 1 :] + answers if int(text) != int(answer))
        wrong = {text for text in mutations(answer, other) if text != "-0"}
        for verifier in (STRICT, FLEXIBLE):
            assert score(verifier, solution, answer) == 1.0
            assert score(verifier, solution, solution) == 1.0
            paid = [text for text in wrong if score(verifier, solution.rpartition("####")[0] + f"#### {text}", answer)]
            assert paid == []
        assert score(STRICT, solution.replace("####", "so"), answer) == 0.0
