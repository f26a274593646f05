"""
AdamW with gradient clipping on parameters that may be sharded, its state as named tensors, and the learning rate by
step.

    backward, any number of times ─▶ clip ─▶ finite? ──yes──▶ step ─▶ zero gradients
                                               └─ no: keep the weights, report ``skipped``
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from math import cos, isfinite, pi
from typing import Any

import torch
from torch import Tensor, nn

from asyncrl.config.sections.trainer import Trainer
from asyncrl.errors import LedgerError
from asyncrl.trainer.checkpoints.snapshot import RowSource, Stored, read_rows
from asyncrl.trainer.model.host_memory import host_empty, moment_buckets, moments_on_device
from asyncrl.trainer.ranks.ranks import collective
from asyncrl.trainer.ranks.sharding import full_tensor

# ── optimizer state ───────────────────────────────────────────────────────────────────────────
# AdamW's moments as named tensors, ``<parameter>/<moment>``, for a safetensors file.
#
# Parameters that were never updated have no moments, before and after a round trip.

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""AdamW's state of one parameter; ``step`` is a scalar."""
State = Mapping[Any, Mapping[str, Tensor]]
"""State of an optimizer by parameter."""


def state_tensors(state: State, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Optimizer state by name. Borrowed: the next step changes it in place."""
    return {
        f"{name}/{moment}": state[weight][moment]
        for name, weight in parameters.items()
        if weight in state
        for moment in MOMENTS
    }


def read_state(
    parameters: Mapping[str, nn.Parameter], tensors: Stored, make: Callable[[Tensor], Tensor] = torch.empty_like
) -> dict[Tensor, dict[str, Tensor]]:
    """
    Read this rank's rows of tensors from `state_tensors`, which are whole.

    ``make`` makes memory for a moment of a parameter.

    Raises:
        LedgerError: They do not fit.
    """
    _check(parameters, tensors)
    return {
        weight: {moment: _read(weight, tensors[f"{name}/{moment}"], make) for moment in MOMENTS}
        for name, weight in parameters.items()
        if f"{name}/{MOMENTS[0]}" in tensors
    }


def _read(weight: nn.Parameter, source: RowSource, make: Callable[[Tensor], Tensor]) -> Tensor:
    """A moment, sharded like its weight; the scalar ``step`` is the same on every rank."""
    moment = make(weight.detach()) if len(source.shape) else torch.zeros((), device=weight.device)
    read_rows(moment, source)
    return moment


def _check(parameters: Mapping[str, nn.Parameter], tensors: Stored) -> None:
    for key, tensor in tensors.items():
        name, _, moment = key.rpartition("/")
        if name not in parameters or moment not in MOMENTS:
            raise LedgerError(f"optimizer state has {key!r}, which belongs to no trainable parameter of this model")
        missing = [other for other in MOMENTS if f"{name}/{other}" not in tensors]
        if missing:
            raise LedgerError(f"optimizer state of {name!r} lacks {', '.join(missing)}")
        expected = () if moment == "step" else tuple(parameters[name].shape)
        if tuple(tensor.shape) != expected:
            raise LedgerError(f"optimizer state {key!r}: expected shape {expected}, got {tuple(tensor.shape)}")


# ── optimizer ─────────────────────────────────────────────────────────────────────────────────


class Optimizer:
    """
    Owns the gradients and AdamW's moments. Parameters that are to be sharded must be so already.

    Gradients are clipped to the norm ``grad_clip``; 0 does not clip.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], trainer: Trainer, *, weight_decay: float, grad_clip: float
    ) -> None:
        self._parameters = dict(parameters)
        self._grad_clip = grad_clip or float("inf")
        for weight in self._parameters.values():
            weight.grad = torch.zeros_like(weight)  # not None: a step without signal has a gradient of zero
        self._has_host_moments = "moments" in trainer.offload
        weights = list(self._parameters.values())
        self._buckets = [
            torch.optim.AdamW(
                bucket,
                betas=(trainer.beta1, trainer.beta2),
                eps=trainer.eps,
                weight_decay=weight_decay,
                fused=True,
            )
            for bucket in (moment_buckets(weights) if self._has_host_moments else [weights])
        ]

    def step(self, loss: float, *, lr: float) -> dict[str, float]:
        """
        Clip the gradient, update the weights and zero the gradient. Collective if the parameters are sharded.

        Args:
            loss: Loss of the gradient. A NaN loss skips the update, because clamps in losses give NaN a gradient of
                zero, which would look valid.

        Returns:
            ``grad_norm`` before clipping, and ``skipped``: 1 if loss or gradient was not finite.
        """
        with collective():
            norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._grad_clip)
            grad_norm = float(full_tensor(norm))
        if is_finite := isfinite(grad_norm) and isfinite(loss):
            for bucket in self._buckets:
                for settings in bucket.param_groups:
                    settings["lr"] = lr
                with moments_on_device(bucket.state) if self._has_host_moments else nullcontext():
                    bucket.step()
        for bucket in self._buckets:
            bucket.zero_grad(set_to_none=False)
        return {"grad_norm": grad_norm, "skipped": float(not is_finite)}

    def memory(self) -> list[Tensor]:
        """AdamW's moments, to be offloaded. Borrowed: do not modify them."""
        return list(self.state().values())

    def gradients(self) -> list[Tensor]:
        """Gradients, zero between two steps. Borrowed."""
        return [weight.grad for weight in self._parameters.values() if weight.grad is not None]

    def state(self) -> dict[str, Tensor]:
        """AdamW's moments by name, for a checkpoint. Borrowed until the next `step`."""
        state = {weight: moments for bucket in self._buckets for weight, moments in bucket.state.items()}
        return state_tensors(state, self._parameters)

    def restore(self, state: Stored) -> None:
        """Read this rank's rows of `state`; raises `LedgerError` if they are not of these parameters."""
        found = read_state(self._parameters, state, host_empty if self._has_host_moments else torch.empty_like)
        for bucket in self._buckets:
            bucket.state.clear()
            own = [weight for group in bucket.param_groups for weight in group["params"]]
            bucket.state.update({weight: found[weight] for weight in own if weight in found})


# ── learning rate ─────────────────────────────────────────────────────────────────────────────
# Learning rate as a pure function of the step, so checkpoints need no scheduler state.


def learning_rate(step: int, trainer: Trainer, num_steps: int, lr: float) -> float:
    """
    Learning rate of a step: linear up to ``lr``, then constant or half a cosine down to ``lr * min_lr_ratio``.

    ``lr`` takes the place of the trainer's. ``step`` counts the steps already done; the cosine ends at ``num_steps``,
    the length of the run.
    """
    if step < trainer.warmup_steps:
        return lr * (step + 1) / trainer.warmup_steps
    if trainer.lr_schedule == "constant":
        return lr
    progress = min(1.0, (step - trainer.warmup_steps) / max(num_steps - trainer.warmup_steps, 1))
    floor = trainer.min_lr_ratio
    return lr * (floor + (1 - floor) * 0.5 * (1 + cos(pi * progress)))
