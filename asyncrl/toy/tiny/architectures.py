"""
Random models of a few layers, one for each architecture that recipes train.

    models/Qwen3-30B-A3B ─▶ qwen3_moe ─▶ 2 layers, 4 experts, random weights
        by config.json, or by the name if there is no such directory
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2VLImageProcessorPil,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from asyncrl.config.model.weights import read_config
from asyncrl.errors import ConfigError
from asyncrl.toy.vision_model import VISION_WORDS, image_processor, random_vision_model

MAX_POSITIONS = 4096
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "tie_word_embeddings": False,
    "bos_token_id": None,
}
"""Sizes that all language models here have in common."""

NAMES = (
    (r"qwen3-vl-[\d.]+b(?!-a)", "qwen3_vl"),
    (r"qwen3-\d+b-a\d+b", "qwen3_moe"),
    (r"qwen3-[\d.]+b", "qwen3"),
    (r"qwen2(\.5)?-(math-)?[\d.]+b", "qwen2"),
)
"""Patterns of published names, in lower case, with the ``model_type`` in config.json."""


def architecture_of(path: Path) -> str:
    """
    ``model_type`` of a model directory, or of the published model that its path names.

    Raises:
        ConfigError: No random model of the architecture can be made, or the name is not a known one.
    """
    if (path / "config.json").is_file():
        found = str(read_config(path).get("model_type"))
    else:
        found = next((kind for pattern, kind in NAMES if re.match(pattern, path.name.lower())), "")
    if found not in ARCHITECTURES:
        what = f"has model_type {found!r}" if found else "is not here, and its name is not a published one"
        raise ConfigError(
            f"model.path={path} {what}; --scale tiny makes models of {', '.join(ARCHITECTURES)}: name one of those, "
            f"such as models/Qwen3-8B"
        )
    return found


def special_words(architecture: str) -> Sequence[str]:
    """Special tokens that an architecture needs in its vocabulary."""
    return VISION_WORDS if architecture in READ_PICTURES else ()


def picture_processor(architecture: str) -> Qwen2VLImageProcessorPil | None:
    """Image processor of an architecture; None if it reads no pictures."""
    return image_processor() if architecture in READ_PICTURES else None


def random_model(architecture: str, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """A model with random weights, a function of its arguments; the process's random state stays as it was."""
    tokens = {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if architecture == "qwen3_vl":
        return random_vision_model(tokenizer, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _MODELS[architecture](TEXT | tokens)


def _qwen2(text: Mapping[str, Any]) -> PreTrainedModel:
    return _made(Qwen2ForCausalLM, Qwen2Config(**text))


def _qwen3(text: Mapping[str, Any]) -> PreTrainedModel:
    return _made(Qwen3ForCausalLM, Qwen3Config(**text, head_dim=16))


def _qwen3_moe(text: Mapping[str, Any]) -> PreTrainedModel:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    return _made(Qwen3MoeForCausalLM, Qwen3MoeConfig(**text, head_dim=16, **experts))


def _made(model: Callable[[Any], PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    return model(config)


_MODELS: Mapping[str, Callable[[Mapping[str, Any]], PreTrainedModel]] = {
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
READ_PICTURES = ("qwen3_vl",)
ARCHITECTURES = (*_MODELS, *READ_PICTURES)
