"""Geometry3K: nine tenths for the answer, one tenth for the format."""

import pytest

from asyncrl.reward.verifier import VerifierInput, verdict_of

Geo3k = pytest.importorskip("asyncrl.reward.verifiers.math", exc_type=ImportError).Geo3k


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
def test_scores_worked_by_hand(completion: str, score: float, accuracy: float, shape: float) -> None:
    verdict = verdict_of(Geo3k()(VerifierInput(completion=completion, answer="\\sqrt{8}")))

    assert verdict.reward == pytest.approx(score)
    assert verdict.metrics == {"accuracy": accuracy, "format": shape, "correct": accuracy, "not_computed": 0.0}
