"""Input and output of a policy loss. Each loss is a file beside this one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from asyncrl.algo.losses.selection import Selection
from asyncrl.algo.ragged import Ragged
from asyncrl.config.catalogue import LossEntry
from asyncrl.errors import AsyncrlError

MAX_LOG_RATIO = 20.0
"""A ratio beyond e^20 indicates an error and must not outweigh all other tokens."""
FLOAT32_LOG_RATIO = 80.0
"""Bound for losses that define none: e^80 times an advantage is finite in float32."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """
    N completion tokens of S trajectories, end to end, without the tokens of tools and rejected tokens.

    Raises:
        AsyncrlError: The tensors differ in shape, or are not as long as the sequences.
    """

    logprobs: Tensor
    """[N] under the policy in training, nats. Carries the gradient."""
    old_logprobs: Tensor
    """[N] under the denominator of the ratio: the policy that sampled, or the one the step begins with; nats."""
    advantages: Tensor
    sequences: Ragged
    is_selected: Tensor | None = None
    """[N] bool, tokens selected over the whole step; None unless the loss has a selection."""

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("logprobs", "old_logprobs", "advantages", "is_selected")}
        shapes = {name: tuple(tensor.shape) for name, tensor in given.items() if tensor is not None}
        expected = tuple(self.sequences.index.shape)
        if any(shape != expected for shape in shapes.values()):
            found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise AsyncrlError(f"tokens: expected tensors of shape {expected}, one number per token, got {found}")

    def log_ratio(self, bound: float = MAX_LOG_RATIO) -> Tensor:
        """[N] ``logprobs - old_logprobs``, clamped to ``±bound``; the gradient is zero where the clamp applies."""
        return (self.logprobs - self.old_logprobs).clamp(-bound, bound)

    @property
    def selected(self) -> Tensor:
        """``is_selected`` for a loss that has a selection; raises `AsyncrlError` if it is None."""
        if self.is_selected is None:
            raise AsyncrlError("tokens: this loss reads is_selected; call its `select` on the step first")
        return self.is_selected


class PolicyLoss(NamedTuple):
    """Losses of N tokens, and metrics."""

    losses: Tensor
    """[N], to be weighted and summed. Carries the gradient."""
    metrics: Mapping[str, Tensor] = {}
    """[N] each, number or bool, to be averaged over tokens. No gradient."""


LossFunction = Callable[..., PolicyLoss]
"""``loss(tokens, *, settings)``: keyword arguments are named like the settings of ``[algorithm]`` they come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss, ready to be called."""

    function: LossFunction
    settings: Mapping[str, Any]
    """Its keyword arguments by name: default, or `asyncrl.plug_in.REQUIRED`."""
    entry: LossEntry
    select: Selection | None = None
    """Selects tokens over the whole step, before updates; the loss reads them as ``is_selected``."""
