"""Mathematics: place and value of the answer."""

import pytest

from asyncrl.reward.verifier import VerifierInput, verdict_of

Math = pytest.importorskip("asyncrl.reward.verifiers.math", exc_type=ImportError).Math


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


def test_the_extracted_answer_is_reported() -> None:
    assert verdict_of(Math()(VerifierInput(completion="\\boxed{7}", answer="8"))).answer == "7"
    assert verdict_of(Math()(VerifierInput(completion="7", answer="8"))).answer == ""
