"""
AdamW with gradient clipping, on parameters that may be sharded.

    backward, any number of times ─▶ clip ─▶ finite? ──yes──▶ step ─▶ zero gradients
                                               └─ no: keep the weights, report ``skipped``
"""

from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor, nn

from asyncrl.config.sections import Trainer
from asyncrl.trainer.checkpoints.stored import Stored
from asyncrl.trainer.model.optimizer_state import restore_state, state_tensors
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
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(),
            betas=(trainer.beta1, trainer.beta2),
            eps=trainer.eps,
            weight_decay=weight_decay,
            fused=True,
        )

    def step(self, loss: float, *, lr: float) -> dict[str, float]:
        """
        Clip the gradient, update the weights and zero the gradient. Collective if the parameters are sharded.

        Args:
            loss: Loss of the gradient. A NaN loss skips the update, because clamps in losses give NaN a gradient of
                zero, which would look valid.

        Returns:
            ``grad_norm`` before clipping, and ``skipped``: 1 if loss or gradient was not finite.
        """
        for settings in self._optimizer.param_groups:
            settings["lr"] = lr
        with collective():
            norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._grad_clip)
            grad_norm = float(full_tensor(norm))
        if is_finite := isfinite(grad_norm) and isfinite(loss):
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)
        return {"grad_norm": grad_norm, "skipped": float(not is_finite)}

    def memory(self) -> list[Tensor]:
        """Moments. Borrowed."""
        return list(self.state().values())

    def gradients(self) -> list[Tensor]:
        """Gradients, zero between two steps. Borrowed."""
        return [weight.grad for weight in self._parameters.values() if weight.grad is not None]

    def state(self) -> dict[str, Tensor]:
        """Moments by name. Borrowed until the next `step`."""
        return state_tensors(self._optimizer, self._parameters)

    def restore(self, state: Stored) -> None:
        restore_state(self._optimizer, self._parameters, state)
