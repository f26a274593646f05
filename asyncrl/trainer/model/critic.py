"""
Value model: a transformer with a scalar head that predicts the return before each completion token.

    prompt  c0 c1 c2          packed row of tokens, the same as the policy's
          ▲  ▲  ▲
         V0 V1 V2             V_t is computed from the state before c_t

It starts as the base model with a head of zeros, so every value is 0. The directory of a saved critic has the head too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoModelForTokenClassification

from asyncrl.config.sections import Config
from asyncrl.errors import ConfigError, LedgerError
from asyncrl.trainer.model.loading import enable_checkpointing, load, packed_states
from asyncrl.trainer.model.optimizer import Optimizer
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.ranks.sharding import shard_like, shard_model

HEAD = ("score.weight", "score.bias")
"""Names that transformers gives the head of a token classification model."""
CPU = torch.device("cpu")
WEIGHTS, OPTIMIZER = "critic", "critic_optimizer"
"""Names of `Critic.tensors`."""


class Critic:
    """
    Owns the value model and its optimizer.

    Args:
        path: Hugging Face directory of a language model or of a critic.
        mesh: Ranks to shard over; None does not shard.

    Raises:
        ConfigError: There is no complete model, or one that the trainer would compute wrongly.
    """

    def __init__(
        self, config: Config, path: Path, mesh: DeviceMesh | None = None, *, device: torch.device = CPU
    ) -> None:
        self.model = load(
            path, AutoModelForTokenClassification, setting="critic.path", device=device, may_lack=HEAD, num_labels=1
        )
        if config.trainer.gradient_checkpointing:
            enable_checkpointing(self.model, f"critic.path={path}")
        self._valuing = _Valuing(self.model, getattr(torch, config.model.dtype), path)
        if mesh is not None:
            shard_model(self.model, self._valuing, mesh)
        self._parameters: dict[str, nn.Parameter] = dict(self.model.named_parameters())
        self._lr = config.critic.lr
        self._optimizer = Optimizer(
            self._parameters,
            config.trainer,
            weight_decay=config.critic.weight_decay,
            grad_clip=config.critic.grad_clip,
        )

    def values(self, batch: MicroBatch) -> Tensor:
        """[N] float32 value before each completion token of ``batch``. Carries the gradient."""
        values: Tensor = self._valuing(batch)
        return values

    def step(self, loss: float, *, lr_scale: float = 1.0) -> dict[str, float]:
        """Update with the accumulated gradients; see `Optimizer.step`. ``lr_scale`` is a factor of ``critic.lr``."""
        metrics = self._optimizer.step(loss, lr=self._lr * lr_scale)
        return {f"critic_{name}": value for name, value in metrics.items()}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Weights and moments for a checkpoint, by file name. Borrowed until the next `step`."""
        weights = {name: weight.detach() for name, weight in self._parameters.items()}
        return {WEIGHTS: weights, OPTIMIZER: self._optimizer.state()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Copy unsharded tensors from `tensors`; raises `LedgerError` if they are not of this model."""
        saved = tensors.get(WEIGHTS, {})
        for name, weight in self._parameters.items():
            if name not in saved or saved[name].shape != weight.shape:
                raise LedgerError(f"the checkpoint has no critic weight {name} of shape {tuple(weight.shape)}")
        for name, weight in self._parameters.items():
            weight.copy_(shard_like(saved[name], weight))
        self._optimizer.restore(tensors.get(OPTIMIZER, {}))


class _Valuing(nn.Module):
    """Forward pass of a critic. An nn.Module, because FSDP hooks into the call of one."""

    def __init__(self, model: Any, dtype: torch.dtype, path: Path) -> None:
        super().__init__()
        self.body: nn.Module = model.base_model
        self._dtype = dtype
        if (head := getattr(model, "score", None)) is None or head.out_features != 1:
            raise ConfigError(f"critic.path={path}: {type(model).__name__} has no head with one output per token")
        self.head: nn.Linear = head

    def forward(self, batch: MicroBatch) -> Tensor:
        with torch.autocast(batch.input_ids.device.type, torch.bfloat16, enabled=self._dtype == torch.bfloat16):
            states = packed_states(self.body, batch)[batch.positions].float()
        values: Tensor = self.head(states)
        return values.sum(1)  # [N, 1] to [N]; not a view, which would lose FSDP's hook on the output
