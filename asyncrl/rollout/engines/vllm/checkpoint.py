"""Facts about the model of a directory, read without loading weights."""

import contextlib

import torch
from msgspec import Struct
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from asyncrl.errors import ConfigError
from asyncrl.plug_in import describe
from asyncrl.rollout.engines import text
from asyncrl.vision.settings import FAMILIES
from asyncrl.weights.contents.layout import TensorSpec
from asyncrl.weights.contents.names import checkpoint_specs


class Checkpoint(Struct, frozen=True, kw_only=True):
    specs: list[TensorSpec]
    """Every tensor by its name in the directory's files, tied ones once, as a trainer publishes them."""
    eos_ids: list[int]
    vocab_size: int


def read(model_path: str, tokenizer: PreTrainedTokenizerBase, dtype: str) -> Checkpoint:
    """Read a directory; ``dtype`` is that of transferred weights. `ConfigError` if it has no language model."""
    model = _without_weights(model_path)
    return Checkpoint(
        specs=checkpoint_specs(model, dtype),
        eos_ids=text.eos_ids(model, tokenizer),
        vocab_size=model.get_input_embeddings().weight.shape[0],
    )


def _without_weights(model_path: str) -> PreTrainedModel:
    try:
        config = AutoConfig.from_pretrained(model_path, local_files_only=True)
        family = AutoModelForImageTextToText if config.model_type in FAMILIES else AutoModelForCausalLM
        with torch.device("meta"):
            model = family.from_config(config)
    except Exception as error:  # a wrong value in config.json may raise anything
        raise ConfigError(f"model.path={model_path} cannot be read: {describe(error, __file__)}") from error
    with contextlib.suppress(OSError):  # Without this file, config.json has the end-of-sequence tokens.
        model.generation_config = GenerationConfig.from_pretrained(model_path, local_files_only=True)
    return model
