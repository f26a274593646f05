"""Linear length penalty."""

import pytest

from asyncrl.errors import ConfigError
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.verifier import VerifierInput, verdict_of
from asyncrl.reward.verifiers.length import Length


@pytest.mark.parametrize(
    ("tokens", "penalty", "correct"),
    [(0, 0.0, 1.0), (20, 0.0, 1.0), (21, -0.025, 0.0), (60, -1.0, 0.0), (100, -2.0, 0.0), (150, -2.0, 0.0)],
)
def test_the_penalty_grows_linearly_from_the_free_tokens_to_the_limit(
    tokens: int, penalty: float, correct: float
) -> None:
    verifier = Length(max_tokens=100, free=20, factor=2.0)

    verdict = verdict_of(verifier(VerifierInput(completion="", num_tokens=tokens)))

    assert verdict.reward == pytest.approx(penalty)
    assert verdict.metrics["correct"] == correct


def test_without_free_tokens_every_token_costs_the_same() -> None:
    verifier = resolve("length", {"max_tokens": 50})
    verdicts = [verdict_of(verifier(VerifierInput(completion="", num_tokens=tokens))) for tokens in (0, 25, 50)]
    assert [verdict.reward for verdict in verdicts] == pytest.approx([0.0, -0.05, -0.1])


def test_free_tokens_up_to_the_limit_are_refused() -> None:
    with pytest.raises(ConfigError, match="free is 10, expected less than max_tokens = 10"):
        resolve("length", {"max_tokens": 10, "free": 10})
