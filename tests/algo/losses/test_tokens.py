import pytest
import torch

from asyncrl.algo.losses.tokens import FLOAT32_LOG_RATIO, MAX_LOG_RATIO, Tokens
from asyncrl.algo.ragged import Ragged
from asyncrl.errors import AsyncrlError
from tests.algo.losses.worked import grad_of, of_ratios


@pytest.mark.parametrize("wrong", ["logprobs", "old_logprobs", "advantages", "is_selected"])
def test_a_tensor_that_is_not_one_number_per_token_is_refused_by_name(wrong: str) -> None:
    tensors = {name: torch.zeros(5) for name in ("logprobs", "old_logprobs", "advantages", "is_selected")}
    tensors[wrong] = torch.zeros(5, 1)
    with pytest.raises(AsyncrlError, match=rf"expected tensors of shape \(5,\), .*{wrong} \(5, 1\)"):
        Tokens(**tensors, sequences=Ragged([2, 0, 3]))


def test_more_tokens_than_the_sequences_have_are_refused() -> None:
    with pytest.raises(AsyncrlError, match=r"expected tensors of shape \(2,\)"):
        Tokens(logprobs=torch.zeros(5), old_logprobs=torch.zeros(5), advantages=torch.zeros(5), sequences=Ragged([2]))


def test_the_log_ratio_is_the_difference_within_its_bound_and_flat_beyond() -> None:
    tokens = of_ratios(1e-12, 2.0, 1e12, advantages=[0.0] * 3)
    bounded = tokens.log_ratio()
    bounded.sum().backward()
    assert bounded.tolist() == pytest.approx([-MAX_LOG_RATIO, 0.6931471805599453, MAX_LOG_RATIO])
    assert grad_of(tokens.logprobs).tolist() == [0.0, 1.0, 0.0]


def test_the_wide_bound_keeps_what_float32_can_hold() -> None:
    tokens = of_ratios(1e12, 1e40, advantages=[0.0] * 2)
    assert tokens.log_ratio(FLOAT32_LOG_RATIO).tolist() == pytest.approx([27.631021115928547, FLOAT32_LOG_RATIO])
    assert tokens.log_ratio(FLOAT32_LOG_RATIO).float().exp().isfinite().all()
