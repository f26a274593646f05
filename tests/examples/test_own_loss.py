"""examples/own_loss.py: both functions are accepted by the code that loads them, and compute what they say."""

import pytest
import torch

from asyncrl.algo.advantages import resolve_advantage
from asyncrl.algo.aggregate import Ragged
from asyncrl.algo.loss_tokens import Tokens
from asyncrl.algo.losses import resolve_loss
from asyncrl.algo.outcomes import Outcome
from tests.examples.conftest import ROOT


def test_the_loss_is_accepted_with_its_setting() -> None:
    loss = resolve_loss(f"{ROOT}/examples/own_loss.py:one_sided")
    assert dict(loss.settings) == {"clip_high": 0.2}


def test_its_option_weights_tokens_with_a_negative_advantage() -> None:
    loss = resolve_loss(f"{ROOT}/examples/own_loss.py:one_sided", {"negative_weight": 0.5})
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    tokens = Tokens(
        logprobs=logprobs,
        old_logprobs=logprobs.detach(),
        advantages=torch.tensor([1.0, -1.0]),
        sequences=Ragged([1, 1]),
    )
    assert loss.function(tokens).losses.tolist() == [-1.0, 0.5]


def test_advantages_are_the_distance_to_the_median_of_the_group() -> None:
    estimator = resolve_advantage(f"{ROOT}/examples/own_loss.py:above_median")
    outcomes = [
        Outcome(group_id=group_id, length=2, reward=reward, metrics={}, baseline=None)
        for group_id, reward in [(0, 0.0), (0, 1.0), (0, 1.0), (1, 5.0)]
    ]
    assert [part.tolist() for part in estimator.function(outcomes)] == [[-1.0] * 2, [0.0] * 2, [0.0] * 2, [0.0] * 2]


@pytest.mark.parametrize("name", ["one_sided", "above_median"])
def test_the_command_in_its_docstring_names_it(name: str) -> None:
    assert f"examples/own_loss.py:{name}" in (ROOT / "examples" / "own_loss.py").read_text(encoding="utf-8")
