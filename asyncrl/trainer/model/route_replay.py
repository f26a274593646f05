"""
Replay of routes: in training, each token of a row takes the experts that it took in the sampler. Also the load of
experts.

    router ─▶ logits, gates, experts ─ hook ─▶ logits, gates of the recorded experts, the recorded experts ─▶ experts

Only the routers have hooks, so experts may be sharded or parallel, and ranks may share a row. A layer that is
recomputed in the backward pass takes the same routes, because they stay until the next micro-batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asyncrl.algo.routing import expert_modules, gates, route_shape
from asyncrl.errors import ConfigError
from asyncrl.trainer.ranks.ranks import Ranks


class RouteReplay:
    """
    Hooks on the routers of one model. The first forward pass raises `ConfigError` if a router's gates are not `gates`.

    Args:
        source: Setting and path of the model, for messages.

    Raises:
        ConfigError: The model has no experts, or no router modules that can have a hook.
    """

    def __init__(self, model: nn.Module, source: str) -> None:
        self._source = source
        self.routes: Tensor | None = None
        """Experts of the row's tokens, [W, layers, K] uint8 or int16; None lets the routers choose."""
        self._renormalised: dict[int, bool] = {}
        """True for layers whose gates sum to 1; found in the first forward pass."""
        routers, shape = _routers(model), route_shape(model)
        if shape is None or None in routers:
            raise ConfigError(
                f"{source}: {type(model).__name__} has no mixture of experts behind a router of its own, which "
                f"rollout.replay_routes needs; set it to false"
            )
        self.shape = shape
        for layer, router in enumerate(routers):
            router.register_forward_hook(partial(self._replay, layer))

    def _replay(self, layer: int, router: nn.Module, _: Any, output: Any) -> tuple[Tensor, ...] | None:
        """Replace the output of a router: logits [W, E], gates [W, K] and experts [W, K]."""
        if layer not in self._renormalised:
            if (renormalised := _renormalises(output)) is None:
                raise ConfigError(
                    f"{self._source}: {type(router).__name__} weights its experts by more than a softmax of its "
                    f"logits, which rollout.replay_routes does not compute; set it to false"
                )
            self._renormalised[layer] = renormalised
        if self.routes is None:
            return None
        return _taking(output, self.routes[:, layer].long(), renormalised=self._renormalised[layer])


class HeldExperts:
    """
    Experts of the passes before, for a pass over the same tokens: where two experts are nearly equal for a token,
    rounding would choose, and states would differ for that alone. No effect on layers whose gates are not `gates`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.held: list[Tensor | None] | None = None
        """[W, K] experts for each layer, or None to let it choose. Before it is set, choices are noted in `chosen`."""
        routers = _routers(model)
        self.chosen: list[list[Tensor]] = [[] for _ in routers]
        """Experts that each layer chose, pass after pass."""
        hooked = [] if None in routers else list(enumerate(routers))
        self._hooks = [router.register_forward_hook(partial(self._hold, layer)) for layer, router in hooked]

    def _hold(self, layer: int, router: nn.Module, _: Any, output: Any) -> tuple[Tensor, ...] | None:
        if (renormalised := _renormalises(output)) is None:
            return None
        if self.held is None:
            self.chosen[layer].append(output[2])
            return None
        experts = self.held[layer]
        return None if experts is None else _taking(output, experts, renormalised=renormalised)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _renormalises(output: Any) -> bool | None:
    """
    True if a router's gates are a softmax over the chosen experts, False if over all; None if they are others.

    Args:
        output: Logits [W, E], gates [W, K] and experts [W, K], or whatever another kind of router returns.
    """
    if isinstance(output, tuple) and len(output) == 3 and all(isinstance(part, Tensor) for part in output):
        logits, own, experts = (part.detach() for part in output)
        if experts.dtype != torch.int64 or own.shape != experts.shape:
            return None
        for renormalised in (True, False):
            found = gates(logits, experts, renormalised=renormalised)
            if torch.allclose(found.to(own.dtype), own, rtol=8 * torch.finfo(own.dtype).eps, atol=1e-6):
                return renormalised
    return None


def _taking(output: tuple[Tensor, Tensor, Tensor], experts: Tensor, *, renormalised: bool) -> tuple[Tensor, ...]:
    """Output of a router that takes these experts: logits [W, E], gates [W, K] and experts [W, K]."""
    logits, own, _ = output
    return logits, gates(logits, experts, renormalised=renormalised).to(own.dtype), experts


def _routers(model: nn.Module) -> list[Any]:
    """Router of each module of experts, in the order of the layers; None for experts without one."""
    experts = {id(module) for module in expert_modules(model)}
    blocks = [block for block in model.modules() if any(id(child) in experts for child in block.children())]
    return [getattr(block, "gate", getattr(block, "router", None)) for block in blocks]


# ── expert load ───────────────────────────────────────────────────────────────────────────────
# Balance of a mixture of experts: how evenly the tokens of an update are spread over them.
#
#   max_load          largest share of an expert times E, mean over layers: 1 is even, E / K is all tokens to K experts
#   unused_fraction   share of the experts of all layers that no token chose
#
# Counted are the positions that predict a trained token, each once for its token: so the numbers do not depend on how
# a step is cut into micro-batches and over ranks, while a prompt that several ranks read is.
#
# Source:
#     Fedus et al. 2021, arXiv:2101.03961, of balance over experts.


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
        """
        Count the tokens of each expert in one forward call, whose ``args`` are states, indices [T, K] and weights.
        """
        if self._positions is None:
            return
        chosen = args[1][self._positions].flatten()
        if self._tokens is None:
            self._tokens = chosen.new_zeros(self._shape)
        self._tokens[layer].scatter_add_(0, chosen, torch.ones_like(chosen))


def load_metrics(tokens: NDArray[np.int64]) -> dict[str, float]:
    """
    Metrics of the load of experts, from the ``tokens`` [L, E] that chose each expert of each layer; none of no token.
    """
    if not tokens.any():
        return {}
    shares = tokens / tokens.sum(1, keepdims=True)
    return {
        "experts/max_load": float(shares.max(1).mean()) * tokens.shape[1],
        "experts/unused_fraction": float((tokens == 0).mean()),
    }
