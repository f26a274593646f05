"""
AdamW on a model's parameters, whether they are spread over ranks or not.

    backward, as often as you like ─▶ clip ─▶ finite? ──yes──▶ step ─▶ gradients are zero again
                                                 └─ no: the weights stay as they are, and that is said
"""

from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor, nn

from asyncrl.config.sections import Trainer
from asyncrl.trainer.model.optimizer_state import restore_state, state_tensors
from asyncrl.trainer.ranks.ranks import collective
from asyncrl.trainer.ranks.sharding import whole


class Optimizer:
    """
    Owns the optimizer's state, and the gradients.

    Args:
        parameters: By name; already spread, if they are to be.
        trainer: Its ``beta1``, ``beta2`` and ``eps`` are read.
        weight_decay: Decoupled, as AdamW has it.
        grad_clip: Norm the gradient is clipped to; 0 never clips.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], trainer: Trainer, *, weight_decay: float, grad_clip: float
    ) -> None:
        self._parameters = dict(parameters)
        self._grad_clip = grad_clip or float("inf")
        for weight in self._parameters.values():
            weight.grad = torch.zeros_like(weight)  # a step without any signal is a step with gradient zero, not None
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(),
            betas=(trainer.beta1, trainer.beta2),
            eps=trainer.eps,
            weight_decay=weight_decay,
            fused=True,
        )

    def step(self, loss: float, *, lr: float) -> dict[str, float]:
        """
        Clip, step, and clear the gradient. Collective, if the parameters are spread.

        Args:
            loss: What the gradient is of. The clamps in losses give NaN a gradient of zero, which would pass for a
                sound one.
            lr: Of this step.

        Returns:
            ``grad_norm`` before it was clipped, and ``skipped``: 1 if loss or gradient was not finite.
        """
        for settings in self._optimizer.param_groups:
            settings["lr"] = lr
        with collective():
            norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._grad_clip)
            grad_norm = float(whole(norm))
        if is_finite := isfinite(grad_norm) and isfinite(loss):
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)
        return {"grad_norm": grad_norm, "skipped": float(not is_finite)}

    def state(self) -> dict[str, Tensor]:
        """Moments by name. Borrowed until the next `step`."""
        return state_tensors(self._optimizer, self._parameters)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """
        Put back what `state` gave, bit for bit. Copied.

        Raises:
            LedgerError: It is not that of these parameters; nothing was changed.
        """
        restore_state(self._optimizer, self._parameters, state)
