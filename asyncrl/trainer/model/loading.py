"""A pretrained model as the trainer computes with it: whole, without dropout, and sequences lying end to end."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.errors import ConfigError
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.packing.packed_attention import pack
from asyncrl.trainer.packing.row import Row

TOLERANCE = 1e-4
"""Two orders of one product differ by less; what a model does besides, by far more."""


def load(
    path: Path,
    kind: Any,
    *,
    setting: str,
    device: torch.device,
    may_lack: Collection[str] = (),
    **options: object,
) -> Any:
    """
    A model of transformers, which carry no types.

    Args:
        path: A Hugging Face model directory.
        kind: One of transformers' automatic classes.
        setting: Configuration key that names ``path``, for messages.
        device: Where it goes, once it has been looked at on the host.
        may_lack: Weights that need not be in the directory, and are zero then.
        options: For transformers.

    Raises:
        ConfigError: There is no complete model of this kind, or its sequences cannot be kept apart.
    """
    if not (path / "config.json").is_file():
        raise ConfigError(f"{setting}={path}: no config.json there; expected a Hugging Face model directory")
    try:
        model, info = kind.from_pretrained(
            path,
            local_files_only=True,
            dtype=torch.float32,
            attn_implementation="sdpa",
            output_loading_info=True,
            **options,
        )
    except (OSError, ValueError, RuntimeError) as error:  # the last is what it says of shapes
        what = "a causal language model" if "Causal" in kind.__name__ else "a critic"
        raise ConfigError(f"{setting}={path}: cannot load {what}: {error}") from error
    for name in set(may_lack) & info["missing_keys"]:
        nn.init.zeros_(model.get_parameter(name))
    if missing := sorted(set(info["missing_keys"]) - set(may_lack)):
        raise ConfigError(
            f"{setting}={path}: {len(missing)} weights are missing from its safetensors and would start random, first "
            f"{missing[0]!r}; copy the directory again"
        )
    model.eval()  # no dropout: noise in the ratio would be clipped as if it were a step
    _pack(model, f"{setting}={path}")
    return model.to(device)


def keep_few_activations(model: Any, place: str) -> None:
    """
    Keep one activation a layer, and compute the others again in the backward pass.

    Args:
        place: Where the model is from, for messages.

    Raises:
        ConfigError: That would switch the model's dropout on.
    """
    for key, value in model.config.get_text_config().to_dict().items():
        if "drop" in key and isinstance(value, float) and value > 0:
            raise ConfigError(
                f"{place}: {key}={value} in its config.json would be active with trainer.gradient_checkpointing; set "
                f"{key} to 0, or switch gradient checkpointing off"
            )
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()  # transformers checkpoints only in this mode


def packed_states(body: nn.Module, batch: MicroBatch) -> Tensor:
    """[W, H] last hidden states of the row; computed as if each sequence were alone."""
    return _states(body, batch.input_ids, position_ids=batch.position_ids, row=batch.row)[0]


@torch.no_grad()
def _pack(model: Any, place: str) -> None:
    """Give it the attention for rows of sequences, and see whether that is all it takes to keep them apart."""
    ids = torch.arange(8, device=model.device)[None] % model.config.get_text_config().vocab_size
    prompt, first, second = torch.split(ids, [3, 3, 2], 1)
    apart = [_states(model.base_model, torch.cat((prompt, rest), 1)) for rest in (first, second)]
    pack(model)
    row = Row([np.arange(6), np.array([0, 1, 2, 6, 7])], model.device)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 3, 4]], device=model.device)
    packed = _states(model.base_model, ids, position_ids=positions, row=row)
    if not torch.allclose(packed, torch.cat((apart[0], apart[1][:, 3:]), 1), rtol=TOLERANCE, atol=TOLERANCE):
        raise ConfigError(
            f"{place}: {type(model).__name__} mixes the tokens of a row by more than plain attention, so sequences "
            f"that lie end to end would see each other; use a model with full or sliding attention in all of its layers"
        )


def _states(body: nn.Module, ids: Tensor, **options: object) -> Tensor:
    states: Tensor = body(input_ids=ids, use_cache=False, **options).last_hidden_state
    return states
