"""Mathematics: place and value of the answer."""

import pytest

from asyncrl.reward.verifier import VerifierInput, verdict_of

math = pytest.importorskip("asyncrl.reward.verifiers.math", exc_type=ImportError)
Math, Geo3k = math.Math, math.Geo3k


@pytest.mark.parametrize(
    ("form", "completion", "answer", "expected"),
    [
        ("any", "so \\boxed{0.5}", "\\frac{1}{2}", 1.0),
        ("any", "Answer: 0.5", "\\frac{1}{2}", 1.0),
        ("any", "Answer: $\\boxed{0.5}$", "\\frac{1}{2}", 1.0),
        ("any", "so \\fbox{0.5}", "\\frac{1}{2}", 1.0),
        ("any", "so $\\mathbf{\\boxed{0.5}}$", "\\frac{1}{2}", 1.0),
        ("any", "Answer: $\\textbf{0.5}$", "\\frac{1}{2}", 1.0),
        ("any", "\\fbox{7} but Answer: 0.5", "\\frac{1}{2}", 0.0),
        ("any", "\\boxed{7} but Answer: 0.5", "\\frac{1}{2}", 0.0),
        ("any", "0.5", "\\frac{1}{2}", 0.0),
        ("any", "\\boxed{0.5", "\\frac{1}{2}", 0.0),
        ("any", "\\boxed{0.5}", "It is \\boxed{\\frac{1}{2}}.", 1.0),
        ("boxed", "Answer: 0.5", "\\frac{1}{2}", 0.0),
        ("answer", "\\boxed{7}\nAnswer: 0.5", "\\frac{1}{2}", 1.0),
        ("answer", "\\boxed{0.5}", "\\frac{1}{2}", 0.0),
    ],
)
def test_scores_worked_by_hand(form: str, completion: str, answer: str, expected: float) -> None:
    assert verdict_of(Math(form=form)(VerifierInput(completion=completion, answer=answer))).reward == expected


def test_writings_of_one_number_are_one_answer_in_a_vote() -> None:
    boxes = (".5", "\\frac12", "x = 0.50", "\\frac{1}{2}", "5/10")
    assert {verdict_of(Math()(VerifierInput(completion=f"\\boxed{{{box}}}", answer="8"))).answer for box in boxes} == {
        "1/2"
    }


def test_an_answer_that_takes_too_long_is_wrong_and_said_to_be_not_computed() -> None:
    for box in ("9^{9^{9^{9}}}", "\\sum_{i=1}^{10^{12}} i", "{" * 16 + "5" + "}" * 16, "|x" * 60):
        verdict = verdict_of(Math()(VerifierInput(completion=f"\\boxed{{{box}}}", answer="5")))
        assert (verdict.reward, verdict.metrics["not_computed"]) == (0.0, 1.0)
    assert verdict_of(Math()(VerifierInput(completion="\\boxed{4}", answer="5"))).metrics["not_computed"] == 0.0


def test_the_extracted_answer_is_reported() -> None:
    assert verdict_of(Math()(VerifierInput(completion="\\boxed{7}", answer="8"))).answer == "7"
    assert verdict_of(Math()(VerifierInput(completion="7", answer="8"))).answer == ""


# ── geo3k ─────────────────────────────────────────────────────────────────────────────────────────
# Geometry3K: nine tenths for the answer, one tenth for the format.


@pytest.mark.parametrize(
    ("completion", "score", "accuracy", "shape"),
    [
        ("<think>hm\n</think> so \\boxed{2\\sqrt{2}}", 1.0, 1.0, 1.0),
        ("so \\boxed{2\\sqrt{2}}", 0.9, 1.0, 0.0),
        ("<think>hm</think> \\boxed{3}", 0.1, 0.0, 1.0),
        (" <think>hm</think> \\boxed{3}", 0.0, 0.0, 0.0),
        ("<think>\\boxed{\\sqrt 8}</think>", 0.9, 1.0, 0.0),
        ("", 0.0, 0.0, 0.0),
    ],
)
def test_scores_of_geometry_worked_by_hand(completion: str, score: float, accuracy: float, shape: float) -> None:
    verdict = verdict_of(Geo3k()(VerifierInput(completion=completion, answer="\\sqrt{8}")))

    assert verdict.reward == pytest.approx(score)
    assert verdict.metrics == {"accuracy": accuracy, "format": shape, "correct": accuracy, "not_computed": 0.0}
