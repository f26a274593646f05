"""What a policy loss is given, and what it gives back. One file for each loss beside this one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from asyncrl.algo.ragged import Ragged


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """N completion tokens of S trajectories, laid end to end. Tokens of tools are not among them."""

    logprobs: Tensor
    """[N] under the policy in training, nats. Carries the gradient."""
    old_logprobs: Tensor
    """[N] under the policy the ratio is taken against: the one that sampled, or the one the step began with."""
    advantages: Tensor
    """[N]."""
    sequences: Ragged
    is_selected: Tensor | None = None
    """[N] bool, tokens that were picked out over the whole step; None unless the loss has a selection."""


class PolicyLoss(NamedTuple):
    """Losses of N tokens, and what is worth knowing about them."""

    losses: Tensor
    """[N], to be weighted and summed. Carries the gradient."""
    metrics: Mapping[str, Tensor] = {}
    """[N] each, number or bool, to be averaged over tokens. No gradient."""


LossFunction = Callable[..., PolicyLoss]
"""``loss(tokens, *, settings)``: keyword arguments are named like the settings of ``[algorithm]`` they come from."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss and what goes with it."""

    function: LossFunction
    aggregation: str = ""
    """The only one it is defined for; empty if any will do."""
    is_of_sequences: bool = False
    """Its losses are one number a trajectory: importance weights are averaged geometrically over it."""
    select: str = ""
    """Name of the selection it needs (`asyncrl.algo.losses.selection`), if any."""
    settings: tuple[str, ...] = field(default=())
    """Names of its keyword arguments; filled in by the table."""
