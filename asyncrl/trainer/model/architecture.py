"""
Checks by config.json and the shapes of the weights that the trainer can compute a model: no weight is read.

`asyncrl.trainer.model.loading` and `Policy` compute with the loaded model and find more; this is what a dry run asks.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import transformers
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)

from asyncrl.config.model import weights
from asyncrl.errors import ConfigError
from asyncrl.vision.processor import require_encoded
from asyncrl.vision.settings import FAMILIES
from asyncrl.weights.contents.architecture import NONE, on_meta, read_config, require_held
from asyncrl.weights.contents.names import checkpoint_specs

ON_LOGITS = {"final_logit_softcapping": None, "logits_scaling": 1.0, "logit_scale": 1.0, "lm_head_multiplier": 1.0}
"""Settings of operations behind the linear head, with the value that leaves the logits as they are."""
ATTENTION = {"full_attention", "sliding_attention"}
"""Layer types that see no token of another sequence of a packed row."""
ROPE_OF_THE_ROW = {"dynamic", "longrope"}
"""Types of rotary embeddings that depend on the last position of a row."""


def read_architecture(path: Path, setting: str, overrides: Mapping[str, Any] = NONE) -> Any:
    """
    The config of a model as transformers reads it, with ``model.overrides``.

    Raises `ConfigError` if it knows no such model, or the model no such override.
    """
    kind = weights.read_config(path).get("model_type")
    if kind not in CONFIG_MAPPING:
        raise ConfigError(
            f"{setting}={path}: transformers {transformers.__version__} has no model of model_type {kind!r}; use a "
            f"model of a type that it has, without code of its own"
        )
    try:
        return read_config(path, overrides)
    except ConfigError:
        raise
    except Exception as error:  # a wrong value in config.json may raise anything
        raise ConfigError(
            f"{setting}={path}: its config.json is not one of model_type {kind!r}: {_first_line(error)}; copy the "
            f"model directory again"
        ) from error


def language_model(config: Any, source: str) -> Any:
    """
    Auto class of transformers for the language model of a config, with a vision tower if it reads pictures.

    Raises:
        ConfigError: The model, named by ``source``, is of another kind, its attention cannot be replaced, or it reads
            pictures, which the installed transformers does not take.
    """
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        if not model._supports_sdpa and not model._is_stateful:  # the latter are refused below, for a better reason
            raise ConfigError(
                f"{source}: {model.__name__} of transformers {transformers.__version__} has no "
                f"scaled_dot_product_attention, by which the sequences of a row stay apart; use a model of another "
                f"type (docs: Models)"
            )
        return AutoModelForCausalLM
    if config.model_type in FAMILIES:
        require_encoded(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)], source)
        return AutoModelForImageTextToText
    raise ConfigError(
        f"{source}: {config.model_type!r} is not a causal language model (model_type in config.json); use a model that "
        f"AutoModelForCausalLM loads, or one that reads pictures: {', '.join(FAMILIES)}"
    )


def policy_class(path: Path, overrides: Mapping[str, Any] = NONE) -> Any:
    """Class of transformers for the policy in ``model.path``; raises as `read_architecture` and `language_model`."""
    return language_model(read_architecture(path, "model.path", overrides), f"model.path={path}")


def check_architecture(
    path: Path, shapes: weights.Shapes | None, setting: str, overrides: Mapping[str, Any] = NONE
) -> PreTrainedConfig:
    """
    Raise `ConfigError` unless the trainer can compute the language model of a directory.

    Args:
        shapes: Shape of each weight in its files, by name; None if it has no weights.
        setting: Key of the path, for messages.
        overrides: ``model.overrides``.
    """
    config = read_architecture(path, setting, overrides)
    source = f"{setting}={path}"
    model = check_config(config, source)
    if shapes is not None:
        require_held(model, shapes, source)
        _check_shapes(model, shapes, source, is_packed=hasattr(config, "quantization_config"))
    return config.get_text_config()


def check_config(config: Any, source: str) -> PreTrainedModel:
    """The model of a config without memory. Raises `ConfigError` unless the trainer can compute it."""
    kind = language_model(config, source)
    model: PreTrainedModel = on_meta(kind, config, source)
    _check_computation(model, config.get_text_config(), source)
    return model


def check_sequence_parallel(config: PreTrainedConfig, size: int, source: str) -> None:
    """Raise `ConfigError` unless ``size`` ranks can share the rows of a model, named by ``source``."""
    if size == 1:
        return
    text: Any = config.get_text_config()
    if text.num_attention_heads % size:
        raise ConfigError(
            f"trainer.sequence_parallel is {size}, which does not divide the {text.num_attention_heads} attention "
            f"heads of {source}; use a divisor of both the heads and trainer.ranks"
        )
    if found := _ropes_of_the_row(text):
        raise ConfigError(
            f"trainer.sequence_parallel is {size}, but the rotary embeddings of {source} ({found[0][0]!r}) depend on "
            f"the last position of a row, of which a rank has only a part; set it to 1"
        )


def check_lengths(config: PreTrainedConfig, longest: int, source: str) -> None:
    """
    Raise `ConfigError` if a sequence would be computed in another way beside one of ``longest`` tokens.

    Rotary embeddings of some models change for all positions once the longest sequence of a row or batch passes a
    limit: the log-probs of a short trajectory would depend on its neighbours, in the trainer and in the engine.
    """
    for kind, limit in _ropes_of_the_row(config.get_text_config()):
        if longest > limit:
            raise ConfigError(
                f"{source}: its rotary embeddings ({kind!r}) are others for every sequence beside one of more than "
                f"{limit:,} tokens, and this run has sequences of up to {longest:,}; keep data.max_prompt_tokens and "
                f"sampling.max_tokens (or environment.max_tokens) together within {limit:,}"
            )


def check_critic(config: PreTrainedConfig, source: str) -> None:
    """Raise `ConfigError` if transformers has no value model of this type. Pictures are refused elsewhere."""
    if config.model_type not in FAMILIES and type(config) not in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING:
        raise ConfigError(
            f"{source}: transformers {transformers.__version__} has no value model (token classification) of the type "
            f"{config.model_type!r}; set critic.path to a model of another type with the same tokenizer, or an "
            f"algorithm.advantage without a critic"
        )


def _ropes_of_the_row(text: Any) -> list[tuple[str, int]]:
    """Kinds of rotary embeddings that depend on the last position of a row, with the tokens up to which they do not."""
    rope = getattr(text, "rope_parameters", None) or {}
    parts = [part for part in (rope, *rope.values()) if isinstance(part, dict)]
    found = []
    for part in parts:
        if (kind := part.get("rope_type")) in ROPE_OF_THE_ROW:
            original = part.get("original_max_position_embeddings") or getattr(
                text, "original_max_position_embeddings", None
            )
            found.append((str(kind), int(original or text.max_position_embeddings)))
    return sorted(found)


def _check_computation(model: PreTrainedModel, config: Any, source: str) -> None:
    kind = type(model).__name__
    others = set(getattr(config, "layer_types", None) or ATTENTION) - ATTENTION
    if model._is_stateful or others:
        raise ConfigError(
            f"{source}: {kind} mixes the tokens of a row outside of attention, so packed sequences would see each "
            f"other; use a model with full or sliding attention in all of its layers (docs: Models)"
        )
    for key, neutral in ON_LOGITS.items():
        if (value := getattr(config, key, neutral)) not in (neutral, None):
            raise ConfigError(
                f"{source}: {kind} computes its logits with more than a linear head ({key}={value}), which the trainer "
                f"cannot reproduce; use a model without logit scaling or soft-capping"
            )
    if (cap := getattr(config, "attn_logit_softcapping", None)) is not None:
        raise ConfigError(
            f"{source}: {kind} caps the scores of its attention (attn_logit_softcapping={cap}), which is not computed "
            f"here; use a model without it"
        )


def _check_shapes(model: PreTrainedModel, shapes: weights.Shapes, source: str, *, is_packed: bool) -> None:
    expected = {spec.name: spec.shape for spec in checkpoint_specs(model, "float32")}
    for name in sorted(expected.keys() & shapes.keys()):
        if expected[name] != shapes[name]:
            raise ConfigError(mismatch(source, name, shapes[name], expected[name]))
    missing = sorted(expected.keys() - shapes.keys())
    # Others may be the same under names of another format, which holds as many values.
    is_less = sum(map(prod, expected.values())) > sum(map(prod, shapes.values())) and not is_packed
    if missing and (is_less or not shapes.keys() - expected.keys()):
        raise ConfigError(lacking(source, missing))


def mismatch(source: str, name: str, got: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """Sentence for a weight of another shape than the config's."""
    return (
        f"{source}: the weight {name!r} has shape {list(got)}, but by config.json it must have {list(expected)}; use "
        f"config and weights of one model"
    )


def lacking(source: str, missing: list[str]) -> str:
    """Sentence for weights that are in none of the files."""
    return (
        f"{source}: {len(missing)} weights are missing from its safetensors and would start random, first "
        f"{missing[0]!r}; copy the directory again"
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
