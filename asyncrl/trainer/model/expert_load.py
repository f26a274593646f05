"""
Balance of a mixture of experts: how evenly the tokens of an update are spread over them.

    max_load          largest share of an expert times E, mean over layers: 1 is even, E / K is all tokens to K experts
    unused_fraction   share of the experts of all layers that no token chose

Counted are the positions that predict a trained token, each once for its token: so the numbers do not depend on how a
step is cut into micro-batches and over ranks, while a prompt that several ranks read is.

Source:
    Fedus et al. 2021, arXiv:2101.03961, of balance over experts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asyncrl.algo.routing import expert_modules
from asyncrl.trainer.ranks.ranks import Ranks


class ExpertLoad:
    """Counts the tokens of each expert of a model; of none if it has no experts."""

    def __init__(self, model: nn.Module) -> None:
        modules = expert_modules(model)
        self._shape = len(modules), max((len(experts.get_parameter("down_proj")) for experts in modules), default=0)
        self._tokens: Tensor | None = None
        """[L, E] that chose each expert of each layer; None until the first of them."""
        self._positions: Tensor | None = None
        for layer, experts in enumerate(modules):
            experts.register_forward_pre_hook(partial(self._count, layer))

    @contextmanager
    def counting(self, positions: Tensor) -> Iterator[None]:
        """Count the tokens at [N] positions of the row that the model computes in this block."""
        self._positions = positions
        try:
            yield
        finally:
            self._positions = None  # layers that are recomputed in a backward pass are not counted again

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """Metrics over all ranks since the last call; none without experts or tokens. Collective."""
        if not self._shape[0]:
            return {}
        own = np.zeros(self._shape, np.int64) if self._tokens is None else self._tokens.cpu().numpy()
        self._tokens = None
        parts = ranks.all_gather(own.tobytes())
        return load_metrics(np.frombuffer(b"".join(parts), np.int64).reshape(len(parts), *self._shape).sum(0))

    def _count(self, layer: int, _: nn.Module, args: tuple[Any, ...]) -> None:
        """``args`` are states [T, H], and indices [T, K] and weights of the experts of each token."""
        if self._positions is None:
            return
        chosen = args[1][self._positions].flatten()
        if self._tokens is None:
            self._tokens = chosen.new_zeros(self._shape)
        self._tokens[layer].scatter_add_(0, chosen, torch.ones_like(chosen))


def load_metrics(tokens: NDArray[np.int64]) -> dict[str, float]:
    """``tokens`` [L, E] that chose each expert of each layer; no metrics of no token."""
    if not tokens.any():
        return {}
    shares = tokens / tokens.sum(1, keepdims=True)
    return {
        "experts/max_load": float(shares.max(1).mean()) * tokens.shape[1],
        "experts/unused_fraction": float((tokens == 0).mean()),
    }
