"""
A Qwen3 with random weights, dense or a mixture of experts.

    hidden size 64, three layers, no experts      151,000 parameters
    the same with four experts in each layer      262,000, of which a token uses about as many
"""

import torch
from msgspec import Struct
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from asyncrl.errors import ConfigError

MAX_POSITIONS = 4096
"""Most tokens of prompt and completion together; rotary positions need no parameters."""
INIT_STD = 0.08
"""About 1 / sqrt(hidden size) for models this small; with 0.02 they need twice the steps to learn."""


class TextModelSizes(Struct, frozen=True, kw_only=True):
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int = 0
    """Experts of each layer; 0 makes a dense model."""
    experts_per_token: int = 2
    """Experts of a token, which divide ``intermediate_size``, so a token costs as much as in a dense model."""


def check_sizes(sizes: TextModelSizes) -> None:
    """Raise `ConfigError` if the sizes contradict each other."""
    if sizes.heads % sizes.kv_heads:
        raise ConfigError(
            f"{sizes.heads} heads cannot share {sizes.kv_heads} kv_heads evenly; make heads a multiple of kv_heads"
        )
    if sizes.head_dim % 2:
        raise ConfigError(f"head_dim is {sizes.head_dim}: rotary positions need an even number; make it even")
    if sizes.experts and sizes.experts_per_token > sizes.experts:
        raise ConfigError(
            f"experts_per_token is {sizes.experts_per_token}, but a layer has {sizes.experts} experts; lower it, or "
            f"raise experts"
        )
    if sizes.experts and sizes.intermediate_size % sizes.experts_per_token:
        raise ConfigError(
            f"{sizes.experts_per_token} experts_per_token cannot share an intermediate_size of "
            f"{sizes.intermediate_size} evenly; make it a multiple of them"
        )


def random_model(sizes: TextModelSizes, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """A Qwen3 with random weights, a function of its arguments; the process's random state stays as it was."""
    config = {
        "vocab_size": len(tokenizer),
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "initializer_range": INIT_STD,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not sizes.experts:
            return Qwen3ForCausalLM(Qwen3Config(**config))
        return Qwen3MoeForCausalLM(
            Qwen3MoeConfig(
                **config,
                num_experts=sizes.experts,
                num_experts_per_tok=sizes.experts_per_token,
                moe_intermediate_size=sizes.intermediate_size // sizes.experts_per_token,
                norm_topk_prob=True,  # as in the published Qwen3 mixtures
            )
        )
