"""Random models small enough to build in every test, and a tokenizer of sixty words."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCAB = 64
EOS = 0

MakeModel = Callable[..., PreTrainedModel]

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
FAMILIES: dict[str, Callable[[dict[str, Any]], PreTrainedModel]] = {
    "qwen3": lambda sizes: Qwen3ForCausalLM(Qwen3Config(**sizes)),
    "qwen3_moe": lambda sizes: Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **EXPERTS)),
    "llama": lambda sizes: LlamaForCausalLM(LlamaConfig(**sizes)),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_model() -> MakeModel:
    """``make_model(family, seed)``: weights large enough that the distributions are far from uniform."""

    def make(family: str = "qwen3", seed: int = 0) -> PreTrainedModel:
        sizes: dict[str, Any] = {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 256,
            "tie_word_embeddings": True,
            "initializer_range": 0.3,
            "eos_token_id": EOS,
            "bos_token_id": None,
            "pad_token_id": None,
        }
        torch.manual_seed(seed)
        return FAMILIES[family](sizes).eval()

    return make


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Ids 3 .. 63 are the words ``w3`` .. ``w63``."""
    words = {"<eos>": EOS, "<user>": 1, "<assistant>": 2} | {f"w{i}": i for i in range(3, VOCAB)}
    words_only = Tokenizer(models.WordLevel(words, unk_token="w3"))
    words_only.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words_only,
        eos_token="<eos>",
        chat_template=(
            "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}"
        ),
    )
