"""Length penalty."""

import pytest

from asyncrl.errors import ConfigError
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.verifier import VerifierInput, verdict_of
from asyncrl.reward.verifiers.overlong import Overlong


@pytest.mark.parametrize(
    ("tokens", "penalty", "overlong"),
    [(0, 0.0, 0.0), (80, 0.0, 0.0), (81, -0.1, 1.0), (90, -1.0, 1.0), (100, -2.0, 1.0), (250, -2.0, 1.0)],
)
def test_the_penalty_grows_linearly_over_the_buffer(tokens: int, penalty: float, overlong: float) -> None:
    verifier = Overlong(max_tokens=100, buffer=20, factor=2.0)

    verdict = verdict_of(verifier(VerifierInput(completion="", num_tokens=tokens)))

    assert verdict.reward == pytest.approx(penalty)
    assert verdict.metrics["overlong"] == overlong


def test_a_buffer_longer_than_the_completion_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than max_tokens = 10"):
        resolve("overlong", {"max_tokens": 10, "buffer": 11})
    with pytest.raises(ConfigError, match="missing required field `max_tokens`"):
        resolve("overlong", {"buffer": 11})
