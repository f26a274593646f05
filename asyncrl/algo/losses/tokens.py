"""What a policy loss is given, and what it gives back. One file for each loss beside this one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from asyncrl.algo.losses.selection import Selection
from asyncrl.algo.ragged import Ragged
from asyncrl.errors import AsyncrlError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """
    N completion tokens of S trajectories, laid end to end. Those of tools, and rejected ones, are not among them.

    Raises:
        AsyncrlError: The tensors differ in shape, or are not as long as the sequences.
    """

    logprobs: Tensor
    """[N] under the policy in training, nats. Carries the gradient."""
    old_logprobs: Tensor
    """[N] under the policy the ratio is taken against: the one that sampled, or the one the step began with."""
    advantages: Tensor
    """[N]."""
    sequences: Ragged
    is_selected: Tensor | None = None
    """[N] bool, tokens that were picked out over the whole step; None unless the loss has a selection."""

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("logprobs", "old_logprobs", "advantages", "is_selected")}
        shapes = {name: tuple(tensor.shape) for name, tensor in given.items() if tensor is not None}
        expected = tuple(self.sequences.index.shape)
        if any(shape != expected for shape in shapes.values()):
            found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise AsyncrlError(
                f"tokens: the sequences have {expected[0]} tokens together, expected as many of each; got {found}"
            )

    @property
    def selected(self) -> Tensor:
        """
        [N] bool, for a loss that has a selection.

        Raises:
            AsyncrlError: Nothing was selected beforehand.
        """
        if self.is_selected is None:
            raise AsyncrlError("tokens: this loss treats some tokens apart; its `select` must be asked which")
        return self.is_selected


class PolicyLoss(NamedTuple):
    """Losses of N tokens, and what is worth knowing about them."""

    losses: Tensor
    """[N], to be weighted and summed. Carries the gradient."""
    metrics: Mapping[str, Tensor] = {}
    """[N] each, number or bool, to be averaged over tokens. No gradient."""


LossFunction = Callable[..., PolicyLoss]
"""``loss(tokens, *, settings)``: keyword arguments are named like the settings of ``[algorithm]`` they come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss and what goes with it."""

    function: LossFunction
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Its keyword arguments by name: default, or `asyncrl.plug_in.REQUIRED`."""
    aggregation: str = ""
    """The only one it is defined for; empty if any will do."""
    is_of_sequences: bool = False
    """Its losses are one number a trajectory: importance weights are averaged geometrically over it."""
    is_zero_without_advantage: bool = False
    """Loss and gradient of a trajectory without any advantage are zero, so that it need not be computed."""
    select: Selection | None = None
    """Picks out ``is_selected`` over the whole step, if the loss treats some tokens apart."""
