"""
Directories of published models without their weights: config, tokenizer, and safetensors with a header and a hole.

They take no room on a disk, and everything that reads shapes and not values takes them for the real ones.
"""

import json
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2VLImageProcessorPil,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3VLConfig,
)

from asyncrl.tools.toy.drawn_squares import VISION_WORDS
from asyncrl.tools.toy.models import tokenizer_from_texts
from asyncrl.tools.toy.tiny_models import CHAT_TEMPLATE
from asyncrl.weights.contents.names import checkpoint_specs

COMMON = {"num_key_value_heads": 8, "dtype": "bfloat16", "max_position_embeddings": 40960}
PUBLISHED: dict[str, PreTrainedConfig] = {
    "Qwen2.5-3B-Instruct": Qwen2Config(
        **COMMON | {"num_key_value_heads": 2, "max_position_embeddings": 32768},
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=11008,
        num_hidden_layers=36,
        num_attention_heads=16,
        tie_word_embeddings=True,
    ),
    "Qwen3-8B": Qwen3Config(
        **COMMON,
        vocab_size=151936,
        head_dim=128,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_attention_heads=32,
        tie_word_embeddings=False,
    ),
    "Qwen3-VL-8B-Instruct": Qwen3VLConfig(
        text_config=COMMON
        | {
            "vocab_size": 151936,
            "head_dim": 128,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "max_position_embeddings": 262144,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5e6,
                "mrope_section": [24, 20, 20],
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_heads": 16,
            "out_hidden_size": 4096,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [8, 16, 24],
        },
        tie_word_embeddings=False,
    ),
    "Qwen3-30B-A3B": Qwen3MoeConfig(
        **COMMON | {"num_key_value_heads": 4},
        vocab_size=151936,
        head_dim=128,
        hidden_size=2048,
        moe_intermediate_size=768,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_experts=128,
        num_experts_per_tok=8,
        tie_word_embeddings=False,
    ),
}
"""Sizes in the config.json of each model on the Hugging Face Hub."""


def make(name: str, folder: Path) -> Path:
    """Write a published model below ``folder``; returns its directory."""
    directory = folder / name
    config = PUBLISHED[name]
    family = AutoModelForImageTextToText if isinstance(config, Qwen3VLConfig) else AutoModelForCausalLM
    with torch.device("meta"):
        model = family.from_config(config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(directory)
    tokenizer = tokenizer_from_texts(["What is 1 + 1?"], 300, VISION_WORDS)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(directory)
    if isinstance(config, Qwen3VLConfig):
        size = {"shortest_edge": 65536, "longest_edge": 16777216}
        Qwen2VLImageProcessorPil(patch_size=16, merge_size=2, size=size).save_pretrained(directory)
    header, end = {}, 0
    for spec in checkpoint_specs(model, "bfloat16"):
        start, end = end, end + spec.num_bytes
        header[spec.name] = {"dtype": "BF16", "shape": list(spec.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return directory
