"""
AdamW with gradient clipping, on parameters that may be sharded.

    backward, any number of times ─▶ clip ─▶ finite? ──yes──▶ step ─▶ zero gradients
                                               └─ no: keep the weights, report ``skipped``
"""

from collections.abc import Mapping
from contextlib import nullcontext
from math import isfinite

import torch
from torch import Tensor, nn

from asyncrl.config.sections.trainer import Trainer
from asyncrl.trainer.checkpoints.stored import Stored
from asyncrl.trainer.model.host_memory import host_empty
from asyncrl.trainer.model.host_moments import moment_buckets, moments_on_device
from asyncrl.trainer.model.optimizer_state import read_state, state_tensors
from asyncrl.trainer.ranks.ranks import collective
from asyncrl.trainer.ranks.sharding import full_tensor


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
            self._update(lr)
        for bucket in self._buckets:
            bucket.zero_grad(set_to_none=False)
        return {"grad_norm": grad_norm, "skipped": float(not is_finite)}

    def memory(self) -> list[Tensor]:
        """Moments. Borrowed."""
        return list(self.state().values())

    def gradients(self) -> list[Tensor]:
        """Gradients, zero between two steps. Borrowed."""
        return [weight.grad for weight in self._parameters.values() if weight.grad is not None]

    def state(self) -> dict[str, Tensor]:
        """Moments by name. Borrowed until the next `step`."""
        state = {weight: moments for bucket in self._buckets for weight, moments in bucket.state.items()}
        return state_tensors(state, self._parameters)

    def restore(self, state: Stored) -> None:
        """Read this rank's rows of `state`; raises `LedgerError` if they are not of these parameters."""
        found = read_state(self._parameters, state, host_empty if self._has_host_moments else torch.empty_like)
        for bucket in self._buckets:
            bucket.state.clear()
            own = [weight for group in bucket.param_groups for weight in group["params"]]
            bucket.state.update({weight: found[weight] for weight in own if weight in found})

    def _update(self, lr: float) -> None:
        for bucket in self._buckets:
            for settings in bucket.param_groups:
                settings["lr"] = lr
            with moments_on_device(bucket.state) if self._has_host_moments else nullcontext():
                bucket.step()
