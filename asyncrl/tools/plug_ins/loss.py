"""
`asyncrl loss try`: a policy loss on a small synthetic batch, beside the built-in `clipped`.

    case          logprobs - old_logprobs
    on policy     0                        every loss with a ratio has the gradient of -A there
    one step off  about 0.1 nats
    far off       about 3 nats             where unbounded ratios overflow
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algo.aggregate import Ragged
from asyncrl.algo.loss_tokens import Loss, PolicyLoss, Tokens
from asyncrl.algo.losses import clipped
from asyncrl.config.run_file import overridden
from asyncrl.trainer.algorithm.recipe import Recipe

LENGTHS = (3, 17, 9, 31, 5, 12, 24, 1)
"""Tokens of eight trajectories, two groups of four."""
ADVANTAGES = (1.2, -0.4, -1.1, 0.3, 0.0, 1.7, -0.9, -0.8)
CASES: Mapping[str, float] = {"on policy": 0.0, "one step off": 0.1, "far off": 3.0}
"""Standard deviation of the log-ratio, nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossResult:
    """A loss in one case. Means are over tokens."""

    case: str
    loss: float
    clipped: float
    """Mean loss of `clipped` with its default settings."""
    moved: float
    """Share of tokens with a gradient, among those with an advantage."""
    direction: float
    """Cosine between the gradients of both losses; nan if one is zero."""
    problem: str = ""
    """Reason not to train with it; empty if there is none."""


def batch(case: str, loss: Loss | None = None) -> Tokens:
    """Tokens of a case, the same each time. A loss with a selection gets every other token selected."""
    random = torch.Generator().manual_seed(0)
    sequences = Ragged(LENGTHS)
    num_tokens = sum(LENGTHS)
    old = -torch.rand(num_tokens, generator=random) * 3 - 0.05
    drift = torch.randn(num_tokens, generator=random) * CASES[case]
    is_selected = torch.arange(num_tokens) % 2 == 0 if loss and loss.select else None
    return Tokens(
        logprobs=(old + drift).clamp(max=-1e-3).requires_grad_() if CASES[case] else old.clone().requires_grad_(),
        old_logprobs=old,
        advantages=sequences.spread(torch.tensor(ADVANTAGES)),
        sequences=sequences,
        is_selected=is_selected,
    )


def examine(loss: str, overrides: Sequence[str] = ()) -> list[LossResult]:
    """
    Compute the loss of a name, and its gradient, in each case; ``overrides`` are those of ``--set``.

    Raises:
        ConfigError: An override does not fit, or the function cannot be loaded, raises, or
            returns no tensor of one differentiable number a token.
    """
    raw = {"model": {"path": "-"}, "data": {"train": "-"}, "algorithm": {"loss": loss}}
    recipe = Recipe(overridden(raw, overrides))
    return [_examined(case, recipe.losses, recipe.loss) for case in CASES]


def _examined(case: str, losses: Callable[[Tokens], PolicyLoss], loss: Loss) -> LossResult:
    ours, own_gradient = _with_gradient(losses, batch(case, loss))
    theirs, usual_gradient = _with_gradient(clipped, batch(case))
    is_of_interest = batch(case).advantages != 0
    return LossResult(
        case=case,
        loss=float(ours.mean()),
        clipped=float(theirs.mean()),
        moved=float((own_gradient[is_of_interest] != 0).float().mean()),
        direction=_cosine(own_gradient, usual_gradient),
        problem=_problem(case, ours, own_gradient, usual_gradient),
    )


def _with_gradient(losses: Callable[[Tokens], PolicyLoss], tokens: Tokens) -> tuple[Tensor, Tensor]:
    found = losses(tokens).losses
    (gradient,) = torch.autograd.grad(found.sum(), tokens.logprobs, allow_unused=True)
    return found.detach(), torch.zeros_like(tokens.logprobs) if gradient is None else gradient


def _problem(case: str, losses: Tensor, gradient: Tensor, usual: Tensor) -> str:
    for what, values in (("losses", losses), ("gradients", gradient)):
        if wrong := int((~torch.isfinite(values)).sum()):
            return f"{wrong} of {len(values)} {what} are not finite"
    if not gradient.any():
        return "no token has a gradient: compute the losses from tokens.logprobs"
    if case == "on policy" and _cosine(gradient, usual) < 0:
        return "it lowers the probability of good tokens: a loss is minimised, so the advantage has a minus sign"
    return ""


def _cosine(first: Tensor, second: Tensor) -> float:
    lengths = first.norm() * second.norm()
    return float(first @ second / lengths) if lengths else float("nan")


def table(results: Sequence[LossResult]) -> list[list[str]]:
    """Rows for the terminal, the first of them the heads."""
    heads = ["case", "loss", "clipped", "tokens with a gradient", "direction"]
    rows = [
        [one.case, f"{one.loss:.4f}", f"{one.clipped:.4f}", f"{one.moved:.0%}", f"{one.direction:.2f}"]
        for one in results
    ]
    return [heads, *rows]
