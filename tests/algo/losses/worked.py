"""Tokens for examples worked by hand: given by their ratios."""

from collections.abc import Sequence
from math import log

import torch

from asyncrl.algo.losses.tokens import Tokens
from asyncrl.algo.ragged import Ragged


def of_ratios(
    *ratios: float,
    advantages: Sequence[float],
    lengths: Sequence[int] | None = None,
    selected: Sequence[bool] | None = None,
    old_probability: float = 0.1,
) -> Tokens:
    """One trajectory a token, unless ``lengths`` says otherwise; the old policy gave each ``old_probability``."""
    old = torch.full((len(ratios),), log(old_probability), dtype=torch.float64)
    return Tokens(
        logprobs=(old + torch.tensor([log(ratio) for ratio in ratios], dtype=torch.float64)).requires_grad_(),
        old_logprobs=old,
        advantages=torch.tensor(advantages, dtype=torch.float64),
        sequences=Ragged(lengths or [1] * len(ratios)),
        is_selected=None if selected is None else torch.tensor(selected),
    )
