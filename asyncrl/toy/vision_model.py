"""
A Qwen3-VL with random weights, small enough for one core: 163,000 parameters.

    24 x 24 pixels ─▶ 6 x 6 patches ─▶ vision tower ─▶ 3 x 3 image tokens ─▶ language model
                                          └─▶ states of its first layer, added to the language model's first layer

An image token stands for 8 x 8 pixels.
"""

import torch
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from asyncrl.toy.drawn_squares import SIDE, SQUARE_PIXELS

VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE_PAD, VIDEO_PAD = "<|image_pad|>", "<|video_pad|>"
VISION_WORDS = (VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD)
"""Special tokens of the model's vocabulary."""

PATCH, MERGE, FRAMES = 4, 2, 2
"""Pixels along a patch, patches along an image token, and frames of a patch; a picture counts as two frames."""
NUM_PATCHES = (SIDE * SQUARE_PIXELS // PATCH) ** 2
HIDDEN_SIZE, VISION_HIDDEN_SIZE = 64, 32
MAX_POSITIONS = 4096
"""Most tokens of a sequence; rotary positions need no parameters."""


def image_processor() -> Qwen2VLImageProcessorPil:
    """Image processor that scales every picture to about 24 x 24 pixels, the size of the drawn ones."""
    pixels = NUM_PATCHES * PATCH**2
    return Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGE,
        temporal_patch_size=FRAMES,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        size={"shortest_edge": pixels, "longest_edge": pixels},
    )


def random_vision_model(tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """A Qwen3-VL with random weights, a function of its arguments; the process's random state stays as it was."""
    ids = dict(zip(VISION_WORDS, tokenizer.convert_tokens_to_ids(list(VISION_WORDS)), strict=True))
    config = Qwen3VLConfig(
        text_config=_text(tokenizer),
        vision_config=_vision(),
        vision_start_token_id=ids[VISION_START],
        vision_end_token_id=ids[VISION_END],
        image_token_id=ids[IMAGE_PAD],
        video_token_id=ids[VIDEO_PAD],
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3VLForConditionalGeneration(config).eval()


def _text(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 3 * HIDDEN_SIZE,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_section": [4, 2, 2],  # half of head_dim: pairs that turn with time, height and width
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _vision() -> dict[str, object]:
    return {
        "depth": 1,
        "hidden_size": VISION_HIDDEN_SIZE,
        "intermediate_size": 2 * VISION_HIDDEN_SIZE,
        "num_heads": 4,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "out_hidden_size": HIDDEN_SIZE,
        "num_position_embeddings": NUM_PATCHES,
        "deepstack_visual_indexes": [0],
    }
