"""
Model in training: score tokens, and hand out weights to publish.

    config.model.dtype = "bfloat16"     weights and gradients float32, products in bfloat16, published as bfloat16

Weights stay float32 for every dtype, because an update with a learning rate of 1e-6 is too small for bfloat16.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoModelForCausalLM

from asyncrl.algo.logprobs import Scores, score_states
from asyncrl.config.sections import Lora
from asyncrl.errors import ConfigError
from asyncrl.trainer.model.loading import TOLERANCE, enable_checkpointing, load, packed_states
from asyncrl.trainer.model.lora import Adapters
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.ranks.sharding import full_tensor, shard_model
from asyncrl.weights.contents.layout import TensorSpec
from asyncrl.weights.contents.names import checkpoint_specs, checkpoint_tensors

CPU = torch.device("cpu")


class Policy:
    """
    Causal language model whose log-probs carry gradients.

    Args:
        dtype: Dtype of matrix products and of published weights.
        gradient_checkpointing: Keep one activation per layer, and recompute the others.
        lora: Train adapters and freeze the model; None, or a rank of 0, trains the model.

    Raises:
        ConfigError: There is no complete causal model, or one that the trainer would compute wrongly.
    """

    def __init__(
        self,
        path: Path,
        *,
        dtype: str = "float32",
        device: torch.device = CPU,
        gradient_checkpointing: bool = False,
        lora: Lora | None = None,
    ) -> None:
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.model = load(path, AutoModelForCausalLM, setting="model.path", device=device)
        if gradient_checkpointing:
            enable_checkpointing(self.model, f"model.path={path}")
        self._vocab_size = int(self.model.config.get_text_config().vocab_size)
        self._adapters = Adapters(self.model, lora) if lora and lora.rank else None
        self._scoring = _Scoring(self.model, self._adapters, self.dtype)
        self._refuse_other_heads(path)

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    def score(
        self, batch: MicroBatch, *, temperature: float, entropy: bool = False, sum_pi_squared: bool = False
    ) -> Scores:
        """Score the N completion tokens of ``batch``. Every parameter is in the graph, even with N = 0."""
        scores: Scores = self._scoring(batch, temperature=temperature, entropy=entropy, sum_pi_squared=sum_pi_squared)
        return scores

    def shard(self, mesh: DeviceMesh) -> None:
        """Shard the model. Afterwards every computation with it, and every read of its weights, is collective."""
        shard_model(self.model, self._scoring, mesh)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Trainable tensors by Hugging Face name, tied ones once under their first name. With LoRA, by PEFT's name."""
        return dict(self.model.named_parameters()) if self._adapters is None else self._adapters.named()

    def restore_adapters(self, tensors: Mapping[str, Tensor]) -> None:
        """With LoRA, load adapters from `parameters`; see `Adapters.restore`. The model must be the base model."""
        if self._adapters is not None:
            self._adapters.restore(tensors)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Weights to publish, adapters merged. Collective if sharded. Float32 ones are borrowed until the next step."""
        for name, weight in checkpoint_tensors(self.model):
            yield name, full_tensor(self._merged(name, weight)).to(self.dtype)

    def state_dict(self) -> dict[str, Tensor]:
        """State dict for `save_pretrained`, adapters merged. Borrowed. Collective if the model is sharded."""
        return {name: self._merged(name, tensor) for name, tensor in self.model.state_dict().items()}

    def specs(self) -> list[TensorSpec]:
        """Names, shapes and dtypes of `named_weights`, in the same order."""
        return checkpoint_specs(self.model, str(self.dtype).removeprefix("torch."))

    def _merged(self, name: str, weight: Tensor) -> Tensor:
        return weight if self._adapters is None else self._adapters.merged(name, weight)

    @torch.no_grad()
    def _refuse_other_heads(self, path: Path) -> None:
        """Scoring applies the linear head only; models that also cap or scale their logits would be silently wrong."""
        head, ids = self._scoring.head, torch.arange(8, device=self.device)[None] % self._vocab_size
        expected = self.model(input_ids=ids, use_cache=False).logits
        got = head(self._scoring.body(input_ids=ids, use_cache=False).last_hidden_state)
        if type(head) is not nn.Linear or not torch.allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE):
            raise ConfigError(
                f"model.path={path}: {type(self.model).__name__} computes its logits with more than a linear head, "
                f"which the trainer cannot reproduce; use a model without logit scaling or soft-capping"
            )


class _Scoring(nn.Module):
    """Forward pass of a policy. An nn.Module, because FSDP hooks into the call of one."""

    def __init__(self, model: Any, adapters: Adapters | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.body: nn.Module = model.base_model
        self.adapters = adapters
        self.head: nn.Linear = model.get_output_embeddings()
        self._dtype = dtype

    def forward(self, batch: MicroBatch, *, temperature: float, entropy: bool, sum_pi_squared: bool) -> Scores:
        with torch.autocast(batch.input_ids.device.type, torch.bfloat16, enabled=self._dtype == torch.bfloat16):
            return score_states(
                packed_states(self.body, batch)[batch.positions],
                self.head.weight,
                self.head.bias,
                batch.token_ids,
                temperature=temperature,
                dtype=self._dtype,
                entropy=entropy,
                sum_pi_squared=sum_pi_squared,
            )
