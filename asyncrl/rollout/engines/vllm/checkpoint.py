"""Tensors, vocabulary and layers of a model directory, read without loading weights."""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from asyncrl.algo.routing import expert_modules
from asyncrl.errors import ConfigError
from asyncrl.messages.token_ids import TokenIds
from asyncrl.plug_in import describe
from asyncrl.vision.processor import ImageProcessor
from asyncrl.vision.settings import FAMILIES
from asyncrl.weights.contents.architecture import NONE, read_config
from asyncrl.weights.contents.layout import TensorSpec
from asyncrl.weights.contents.names import checkpoint_specs
from asyncrl.weights.contents.token_ids import find_token_ids

LAYER = re.compile(r"\.layers\.(\d+)\.")
"""Pattern of a layer's index in the name of a module."""


class CheckpointWeights(Struct, frozen=True, kw_only=True):
    specs: list[TensorSpec]
    """Every tensor by its name in the directory's files, tied ones once, as a trainer publishes them."""
    token_ids: TokenIds
    without_probability: list[int]
    """Ids, of the rows of the head, that vLLM would draw and must not."""
    expert_layers: list[int] = []
    """Indices of the layers that have experts."""


def read(
    model_path: str,
    tokenizer: PreTrainedTokenizerBase,
    dtype: str,
    overrides: Mapping[str, Any] = NONE,
    processor: ImageProcessor | None = None,
) -> CheckpointWeights:
    """
    Read a directory with ``model.overrides``; ``dtype`` is that of transferred weights.

    Raises `ConfigError` if it has no causal language model, or the tokenizer is that of another one.
    """
    model = _without_weights(model_path, overrides)
    token_ids = find_token_ids(model, tokenizer, processor)
    return CheckpointWeights(
        specs=checkpoint_specs(model, dtype),
        token_ids=token_ids,
        without_probability=token_ids.without_probability(model.get_input_embeddings().weight.shape[0]),
        expert_layers=_expert_layers(model),
    )


def _expert_layers(model: PreTrainedModel) -> list[int]:
    experts = {id(module) for module in expert_modules(model)}
    names = [name for name, module in model.named_modules() if id(module) in experts]
    return [int(found[1]) for name in names if (found := LAYER.search(name))]


def _without_weights(model_path: str, overrides: Mapping[str, Any]) -> PreTrainedModel:
    try:
        config = read_config(Path(model_path), overrides)
        family = AutoModelForImageTextToText if config.model_type in FAMILIES else AutoModelForCausalLM
        with torch.device("meta"):
            model = family.from_config(config)
    except ConfigError:
        raise
    except Exception as error:  # a wrong value in config.json may raise anything
        raise ConfigError(f"model.path={model_path} cannot be read: {describe(error, __file__)}") from error
    with contextlib.suppress(OSError):  # Without this file, config.json has the end-of-sequence tokens.
        model.generation_config = GenerationConfig.from_pretrained(model_path, local_files_only=True)
    return model
