"""
The model in training: load it, ask it for log-probs, hand out its weights.

    config.model.dtype = "bfloat16"     weights and gradients float32, products in bfloat16, published as bfloat16

Weights stay float32 whatever the dtype, because a learning rate of 1e-6 changes less than bfloat16 can hold.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from asyncrl.algo.logprobs import logprobs_of_hidden
from asyncrl.errors import ConfigError
from asyncrl.trainer.batch import MicroBatch
from asyncrl.weights.names import checkpoint_specs, checkpoint_tensors
from asyncrl.weights.plan import TensorSpec

HEAD_TOLERANCE = 1e-4
"""Two orders of one product differ by less; a soft-cap or a logit scale by far more."""


class Policy:
    """A causal language model whose log-probs carry gradients."""

    def __init__(self, path: Path, *, dtype: str = "float32", gradient_checkpointing: bool = False) -> None:
        """
        Args:
            path: A Hugging Face model directory.
            dtype: Of products and of published weights.
            gradient_checkpointing: Keep one activation a layer, and compute the others again.

        Raises:
            ConfigError: No complete causal model there, or one this trainer would compute wrongly.
        """
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.model = _load(path)
        if gradient_checkpointing:
            _refuse_dropout(self.model, path)
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            self.model.train()  # transformers checkpoints only in this mode
        self._states: nn.Module = self.model.base_model
        self._head: nn.Module = self.model.get_output_embeddings()
        self._vocab_size = int(self.model.config.get_text_config().vocab_size)
        self._refuse_other_heads(path)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def logprobs(self, batch: MicroBatch, *, temperature: float) -> Tensor:
        """[N] float32 log-probs of the completion tokens of ``batch``, in its order, nats."""
        with torch.autocast(batch.input_ids.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            states = self._states(input_ids=batch.input_ids, use_cache=False).last_hidden_state
            return logprobs_of_hidden(
                states.flatten(0, 1)[batch.positions],
                self._head,
                batch.token_ids,
                temperature=temperature,
                vocab_size=self._vocab_size,
            )

    def parameters(self) -> dict[str, nn.Parameter]:
        """Trainable tensors by Hugging Face name, tied ones once, under their first name."""
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Weights as engines take them. Borrowed where the dtype is float32: the next step changes them in place."""
        for name, weight in checkpoint_tensors(self.model):
            yield name, weight.to(self.dtype)

    def specs(self) -> list[TensorSpec]:
        """What `named_weights` yields, in its order."""
        return checkpoint_specs(self.model, str(self.dtype).removeprefix("torch."))

    def _refuse_other_heads(self, path: Path) -> None:
        """Logits are computed by the head alone; some models also cap or scale them, and would be wrong in silence."""
        input_ids = torch.arange(min(8, self._vocab_size), device=self.device)[None]
        with torch.no_grad():
            expected = self.model(input_ids=input_ids, use_cache=False).logits
            got = self._head(self._states(input_ids=input_ids, use_cache=False).last_hidden_state)
        if not torch.allclose(got, expected, rtol=HEAD_TOLERANCE, atol=HEAD_TOLERANCE):
            raise ConfigError(
                f"model.path={path}: {type(self.model).__name__} does more than a linear head to its logits, which the "
                f"trainer cannot reproduce; use a model without logit scaling or soft-capping"
            )


def _load(path: Path) -> Any:  # transformers' models carry no types
    if not (path / "config.json").is_file():
        raise ConfigError(f"model.path={path}: no config.json there; expected a Hugging Face model directory")
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            path, local_files_only=True, dtype=torch.float32, attn_implementation="sdpa", output_loading_info=True
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path={path}: cannot load a causal language model: {error}") from error
    if missing := sorted(info["missing_keys"]):
        raise ConfigError(
            f"model.path={path}: {len(missing)} weights are missing from its safetensors and would start random, first "
            f"{missing[0]!r}; copy the directory again"
        )
    return model.eval()  # no dropout: noise in the ratio would be clipped as if it were a step


def _refuse_dropout(model: Any, path: Path) -> None:
    for key, value in model.config.get_text_config().to_dict().items():
        if "drop" in key and isinstance(value, float) and value > 0:
            raise ConfigError(
                f"model.path={path}: {key}={value} in its config.json would be active with "
                f"trainer.gradient_checkpointing; set {key} to 0, or switch gradient checkpointing off"
            )
