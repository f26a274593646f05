"""GSM8K: the number after ####."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import VerifierError
from asyncrl.reward.verifier import Verdict, VerifierInput, verdict_of
from asyncrl.reward.verifiers.math_text import TAIL_CHARS, Gsm8k, MathDapo, normalized

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


# ── test math dapo ────────────────────────────────────────────────────────────────────────────
# DAPO's mathematics reward: equality of normalized text.


def judged(completion: str, answer: str, *, boxed: bool = False) -> Verdict:
    return verdict_of(MathDapo(boxed=boxed)(VerifierInput(completion=completion, answer=answer)))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (" $1,234$. ", "1234"),
        ("1{,}234", "1234"),
        ("$\\boxed{\\frac{1}{2}}$", "\\frac{1}{2}"),
        ("\\boxed{x = 5}", "5"),
        ("\\mathbf{\\text{5}}", "5"),
        ("−5", "-5"),
        ("90\\degree", "90"),
        ("90°", "90"),
        ("x = 5", "5"),
        ("\\boxed{\\text{5}}", "5"),
        ("5 \\text{ miles}", "5"),
        ("12 square units", "12"),
        ("\\frac12", "\\frac{1}{2}"),
        ("\\dfrac{1}{2}", "\\frac{1}{2}"),
        ("\\sqrt3", "\\sqrt{3}"),
        ("90^\\circ", "90"),
        ("50\\%", "50"),
        ("\\left( 1, 2 \\right)", "(1,2)"),
        ("the 7", "7"),
    ],
)
def test_answers_are_normalized(written: str, expected: str) -> None:
    assert normalized(written) == expected


def test_right_is_one_and_wrong_is_minus_one() -> None:
    assert judged("Answer: 1,234", "1234") == Verdict(1.0, {"correct": 1.0}, "1234")
    assert judged("Answer: 1235", "1234") == Verdict(-1.0, {"correct": 0.0}, "1235")
    assert judged("1234", "1234") == Verdict(-1.0, {"correct": 0.0}, "")
    assert judged("Answer: $\\boxed{\\frac{1}{2}}$", "\\frac12").reward == 1.0
    assert judged("Answer: 1{,}024", "1024").reward == 1.0


@pytest.mark.parametrize(
    ("completion", "otherwise", "boxed"),
    [
        ("so \\boxed{\\text{1,234}}", 1.0, 1.0),
        ("so \\fbox{1234} it is", 1.0, 1.0),
        ("\\boxed{1} no, \\boxed{1234}", 1.0, 1.0),
        ("Answer:\n\\boxed{1234}", 1.0, 1.0),
        ("Answer: 1234, not \\boxed{1}", -1.0, -1.0),
        ("Answer: 1234\nnot \\boxed{1}", 1.0, -1.0),
        ("Answer: 1\nnot \\boxed{1234}", -1.0, 1.0),
        ("Answer: 1234", 1.0, -1.0),
        ("so \\boxed{1234", -1.0, -1.0),
    ],
)
def test_a_box_counts_where_no_answer_is_marked_and_with_boxed_alone(
    completion: str, otherwise: float, boxed: float
) -> None:
    assert judged(completion, "1234").reward == otherwise
    assert judged(completion, "1234", boxed=True).reward == boxed


@pytest.mark.parametrize(
    ("given", "answer", "expected"),
    [
        ("5 apples", "5", 1.0),
        ("12。", "12", 1.0),
        ("１２", "12", 1.0),
        ("3 m", "3 km", -1.0),
        ("60^\\circ", "60\\%", -1.0),
        ("2012_5", "2012_6", -1.0),
        ("1=2=6", "6", -1.0),
        ("5=6", "6", -1.0),
        ("5 or 6", "6", -1.0),
        ("x = 6", "6", 1.0),
    ],
)
def test_units_and_bases_that_are_written_must_agree_and_guesses_are_no_answer(
    given: str, answer: str, expected: float
) -> None:
    assert judged(f"so \\boxed{{{given}}}", answer).reward == expected


def test_only_the_tail_is_searched_of_math_dapo() -> None:
    assert judged("Answer: 18\n" + "." * (TAIL_CHARS - 11), "18").reward == 1.0
    assert judged("Answer: 18\n" + "." * (TAIL_CHARS - 10), "18").reward == -1.0


@given(st.integers(-(10**12), 10**12), st.text())
def test_every_integer_is_its_own_answer_whatever_comes_before(number: int, before: str) -> None:
    assert judged(f"{before}\nAnswer: ${number:,}$", str(number)).reward == 1.0
    assert judged(f"{before}\nAnswer: {number + 1}", str(number)).reward == -1.0


def test_a_row_without_an_answer_is_an_error_and_not_a_minus_one() -> None:
    with pytest.raises(VerifierError, match="no answer"):
        judged("Answer: 1", " ")
