"""
What the policy can expect from where it stands: a model of its own, with one number for a head.

    prompt  c0 c1 c2          row of tokens, as the policy reads it
          ▲  ▲  ▲
         V0 V1 V2             value before each completion token, so V_t knows nothing of c_t

It begins as the base model with a head of zeros: nothing is expected of anything. A directory in which a critic was
saved has the head too.
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
from asyncrl.trainer.model.loading import keep_few_activations, load, packed_states
from asyncrl.trainer.model.optimizer import Optimizer
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.ranks.sharding import shard, share

HEAD = ("score.weight", "score.bias")
"""What transformers calls the head of a model that says something of each token."""
CPU = torch.device("cpu")
WEIGHTS, OPTIMIZER = "critic", "critic_optimizer"
"""Names of `Critic.tensors`."""


class Critic:
    """Owns the value model and its optimizer."""

    def __init__(
        self, config: Config, path: Path, mesh: DeviceMesh | None = None, *, device: torch.device = CPU
    ) -> None:
        """
        Args:
            config: Its ``critic``, ``trainer`` and ``model.dtype`` are read.
            path: Of a language model or of a critic, in Hugging Face form.
            mesh: Ranks to spread it over.
            device: Where it computes.

        Raises:
            ConfigError: No complete model there, or one this trainer would compute wrongly.
        """
        self.model = load(
            path, AutoModelForTokenClassification, setting="critic.path", device=device, may_lack=HEAD, num_labels=1
        )
        if config.trainer.gradient_checkpointing:
            keep_few_activations(self.model, f"critic.path={path}")
        self._valuing = _Valuing(self.model, getattr(torch, config.model.dtype), path)
        if mesh is not None:
            shard(self.model, self._valuing, mesh)
        self._parameters: dict[str, nn.Parameter] = dict(self.model.named_parameters())
        self._lr = config.critic.lr
        self._descent = Optimizer(
            self._parameters,
            config.trainer,
            weight_decay=config.critic.weight_decay,
            grad_clip=config.critic.grad_clip,
        )

    def values(self, batch: MicroBatch) -> Tensor:
        """[N] float32 value before each completion token of ``batch``, in its order. Carries the gradient."""
        values: Tensor = self._valuing(batch)
        return values

    def step(self, loss: float, *, lr_share: float = 1.0) -> dict[str, float]:
        """
        One update with the gradients that are there; `Optimizer.step` tells more.

        Args:
            loss: What they are of.
            lr_share: Of ``critic.lr``.
        """
        metrics = self._descent.step(loss, lr=self._lr * lr_share)
        return {f"critic_{name}": value for name, value in metrics.items()}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """What a checkpoint holds of it. Borrowed until the next `step`."""
        weights = {name: weight.detach() for name, weight in self._parameters.items()}
        return {WEIGHTS: weights, OPTIMIZER: self._descent.state()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """
        Take back what `tensors` gave, whole. Copied.

        Raises:
            LedgerError: They are not of this model.
        """
        saved = tensors.get(WEIGHTS, {})
        for name, weight in self._parameters.items():
            if name not in saved or saved[name].shape != weight.shape:
                raise LedgerError(f"the critic's {name} is not in the checkpoint in its shape {tuple(weight.shape)}")
        for name, weight in self._parameters.items():
            weight.copy_(share(saved[name], weight))
        self._descent.restore(tensors.get(OPTIMIZER, {}))


class _Valuing(nn.Module):
    """What is computed with a critic. A module, because sharding works on what is called."""

    def __init__(self, model: Any, dtype: torch.dtype, path: Path) -> None:
        super().__init__()
        self.body: nn.Module = model.base_model
        self._dtype = dtype
        if (head := getattr(model, "score", None)) is None or head.out_features != 1:
            raise ConfigError(f"critic.path={path}: {type(model).__name__} has no head that says one number of a token")
        self.head: nn.Linear = head

    def forward(self, batch: MicroBatch) -> Tensor:
        with torch.autocast(batch.input_ids.device.type, torch.bfloat16, enabled=self._dtype == torch.bfloat16):
            states = packed_states(self.body, batch)[batch.positions].float()
        values: Tensor = self.head(states)
        return values.sum(1)  # of one: sharding hooks into what a module gives back, and a view would lose the hook
