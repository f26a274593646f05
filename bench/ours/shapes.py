"""Qwen3 models of several sizes with random weights, and realistic optimizer steps on them."""

from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.weights.contents.layout import TensorSpec
from asyncrl.weights.contents.names import checkpoint_specs, checkpoint_tensors

SHAPES = {
    "tiny": (2048, 64, 2, 16),
    "1M": (2048, 128, 4, 32),
    "30M": (16384, 384, 14, 64),
    "300M": (32768, 1024, 21, 64),
}
"""(vocabulary, hidden size, layers, head size). Query heads fill the hidden size; half as many key-value heads."""
DTYPES = ("bfloat16", "float32")
ROWS, TOKENS = 4, 32
"""Completions per update, and tokens per completion."""


def config(size: str) -> Qwen3Config:
    vocab_size, hidden_size, num_layers, head_dim = SHAPES[size]
    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // head_dim,
        num_key_value_heads=hidden_size // head_dim // 2,
        head_dim=head_dim,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
    )


def model(size: str) -> Any:
    """A model with float32 weights, as in the trainer."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config(size)).eval()


def specs(size: str, dtype: str) -> list[TensorSpec]:
    """Tensor specs of a transfer, made without allocating weights."""
    with torch.device("meta"):
        return checkpoint_specs(Qwen3ForCausalLM(config(size)), dtype)


def weights(model: Any, dtype: str) -> dict[str, Tensor]:
    """Copies of the weights, like the staging buffers of a rollout."""
    return {name: tensor.to(getattr(torch, dtype), copy=True) for name, tensor in checkpoint_tensors(model)}


class Updates:
    """
    Policy-gradient steps on random tokens; half of the completions have a positive advantage, half a negative one.

    The weights are not rounded to bfloat16, like weights after many steps and unlike those of a bfloat16 checkpoint.
    """

    def __init__(self, model: Any, lr: float) -> None:
        self._model = model
        self._optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=0.01)

    def step(self) -> None:
        """One GRPO-style policy gradient step."""
        tokens = torch.randint(self._model.config.vocab_size, (ROWS, TOKENS))
        logits = self._model(input_ids=tokens[:, :-1], use_cache=False).logits
        logprobs = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])
        advantages = torch.tensor([1.0, -1.0] * (ROWS // 2))[:, None, None]
        (-(advantages * logprobs).mean()).backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
