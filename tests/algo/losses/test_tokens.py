import pytest
import torch

from asyncrl.algo.losses.tokens import Tokens
from asyncrl.algo.ragged import Ragged
from asyncrl.errors import AsyncrlError


@pytest.mark.parametrize("wrong", ["logprobs", "old_logprobs", "advantages", "is_selected"])
def test_what_is_not_one_number_a_token_is_refused_by_name(wrong) -> None:
    tensors = {name: torch.zeros(5) for name in ("logprobs", "old_logprobs", "advantages", "is_selected")}
    tensors[wrong] = torch.zeros(5, 1)
    with pytest.raises(AsyncrlError, match=rf"5 tokens together.*{wrong} \(5, 1\)"):
        Tokens(**tensors, sequences=Ragged([2, 0, 3]))


def test_more_tokens_than_the_sequences_have_are_refused() -> None:
    with pytest.raises(AsyncrlError, match="the sequences have 2 tokens together"):
        Tokens(logprobs=torch.zeros(5), old_logprobs=torch.zeros(5), advantages=torch.zeros(5), sequences=Ragged([2]))
