"""
Replay of routes: in training, each token of a row takes the experts that it took in the sampler.

    router ─▶ logits, gates, experts ─ hook ─▶ logits, gates of the recorded experts, the recorded experts ─▶ experts

Only the routers have hooks, so experts may be sharded or parallel, and ranks may share a row. A layer that is
recomputed in the backward pass takes the same routes, because they stay until the next micro-batch.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from asyncrl.algo.routing import expert_modules, gates, route_shape
from asyncrl.errors import ConfigError


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
            self._renormalised[layer] = self._check(router, output)
        if self.routes is None:
            return None
        return _taking(output, self.routes[:, layer].long(), renormalised=self._renormalised[layer])

    def _check(self, router: nn.Module, output: Any) -> bool:
        """True if a router renormalises; raises `ConfigError` if its gates are others than `gates`."""
        if (renormalised := _renormalises(output)) is None:
            raise ConfigError(
                f"{self._source}: {type(router).__name__} weights its experts by more than a softmax of its logits, "
                f"which rollout.replay_routes does not compute; set it to false"
            )
        return renormalised


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
