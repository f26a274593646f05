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
import torch.nn.functional as F  # noqa: N812  # torch's conventional alias
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoModelForTokenClassification

from asyncrl.algo.routing import expert_modules
from asyncrl.config.config import Config
from asyncrl.errors import ConfigError, LedgerError
from asyncrl.trainer.checkpoints.snapshot import Stored, read_rows
from asyncrl.trainer.model.host_memory import HostActivations, enable_checkpointing
from asyncrl.trainer.model.loading import load, make_model, pack, packed_states
from asyncrl.trainer.model.optimizer import Optimizer
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.ranks.sharding import Computation

HEAD = ("score.weight", "score.bias")
"""Names that transformers gives the head of a token classification model."""
CPU = torch.device("cpu")
WEIGHTS, OPTIMIZER = "critic", "critic_optimizer"
"""Names of `Critic.tensors`."""


class ValueModel:
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
        kind = AutoModelForTokenClassification
        overrides = {} if config.critic.path else config.model.overrides
        self.model: Any = make_model(path, kind, setting="critic.path", overrides=overrides, num_labels=1)
        self._head = _head(self.model, path)
        offload = config.trainer.offload
        if how := config.trainer.gradient_checkpointing:
            inputs = HostActivations(device) if "activations" in offload else None
            enable_checkpointing(self.model, f"critic.path={path}", how, inputs=inputs)
        self._computation = Computation(self.model)
        dtype: torch.dtype = getattr(torch, config.model.dtype)
        place: dict[str, Any] = {"device": device, "mesh": mesh, "dtype": dtype, "on_host": "parameters" in offload}
        place |= {"expert_parallel": config.trainer.expert_parallel and bool(expert_modules(self.model))}
        load(path, kind, self._computation, setting="critic.path", may_lack=HEAD, **place)
        pack(self._computation, f"critic.path={path}", dtype, device)
        self._parameters: dict[str, nn.Parameter] = dict(self.model.named_parameters())
        self._lr = config.critic.lr
        self.optimizer = Optimizer(
            self._parameters,
            config.trainer,
            weight_decay=config.critic.weight_decay,
            grad_clip=config.critic.grad_clip,
        )

    def values(self, batch: MicroBatch) -> Tensor:
        """[N] float32 value before each completion token of ``batch``. Carries the gradient."""
        return batch.gather(self._computation.run(self._values, batch))

    def _values(self, batch: MicroBatch) -> Tensor:
        states = packed_states(self.model.base_model, batch)[batch.positions].float()
        bias = None if self._head.bias is None else self._head.bias.float()
        values = F.linear(states, self._head.weight.float(), bias)
        return values.sum(1)  # [N, 1] to [N]; not a view, which would lose FSDP's hook on the output

    def step(self, loss: float, *, lr_scale: float = 1.0) -> dict[str, float]:
        """Update with the accumulated gradients; see `Optimizer.step`. ``lr_scale`` is a factor of ``critic.lr``."""
        metrics = self.optimizer.step(loss, lr=self._lr * lr_scale)
        return {f"critic_{name}": value for name, value in metrics.items()}

    def memory(self) -> list[Tensor]:
        """Parameters, buffers and moments. Borrowed."""
        return [*self.model.parameters(), *self.model.buffers(), *self.optimizer.memory()]

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Weights and moments for a checkpoint, by file name. Borrowed until the next `step`."""
        weights = {name: weight.detach() for name, weight in self._parameters.items()}
        return {WEIGHTS: weights, OPTIMIZER: self.optimizer.state()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Stored]) -> None:
        """Read this rank's rows of `tensors`; raises `LedgerError` if they are not of this model."""
        saved = tensors.get(WEIGHTS, {})
        for name, weight in self._parameters.items():
            if name not in saved or tuple(saved[name].shape) != tuple(weight.shape):
                raise LedgerError(f"the checkpoint has no critic weight {name} of shape {tuple(weight.shape)}")
        for name, weight in self._parameters.items():
            read_rows(weight, saved[name])
        self.optimizer.restore(tensors.get(OPTIMIZER, {}))


def _head(model: Any, path: Path) -> nn.Linear:
    head: nn.Linear | None = getattr(model, "score", None)
    if head is None or head.out_features != 1:
        raise ConfigError(f"critic.path={path}: {type(model).__name__} has no head with one output per token")
    return head
