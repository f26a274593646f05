"""Load a pretrained transformers model for training: float32, without dropout, with packed attention."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.config.model.directory import require_directory
from asyncrl.config.model.weights import check_weights
from asyncrl.errors import ConfigError
from asyncrl.plug_in import describe
from asyncrl.trainer.model.architecture import lacking, mismatch, read_architecture
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.packing.packed_attention import use_packed_attention
from asyncrl.trainer.packing.row import Row

TOLERANCE = 1e-4
"""Larger than the rounding between two orders of one product, far smaller than the effect of a further operation."""


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
    Load a transformers model; untyped, because transformers has no types.

    Args:
        kind: Auto class of transformers.
        setting: Configuration key of ``path``, for messages.
        device: Final device; the model is checked on the host first.
        may_lack: Weights that may be missing from the directory, and are zero then.

    Raises:
        ConfigError: There is no complete model of this kind with finite weights, or packed sequences would see each
            other.
    """
    source = f"{setting}={path}"
    check_weights(require_directory(str(path), setting), setting)
    read_architecture(path, setting)
    try:
        model, info = kind.from_pretrained(
            path,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="sdpa",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, in one sentence
            **options,
        )
    except Exception as error:  # a wrong value in config.json may raise anything
        what = "a causal language model" if "Causal" in kind.__name__ else "a critic"
        raise ConfigError(f"{source}: cannot load {what}: {describe(error, __file__)}") from error
    if wrong := sorted(info["mismatched_keys"]):
        raise ConfigError(mismatch(source, *wrong[0]))
    for name in set(may_lack) & info["missing_keys"]:
        nn.init.zeros_(model.get_parameter(name))
    if missing := sorted(set(info["missing_keys"]) - set(may_lack)):
        raise ConfigError(lacking(source, missing))
    _refuse_non_finite(model, source)
    model.eval()  # no dropout: its noise in the ratio would be clipped like a policy update
    _pack(model, source)
    return model.to(device)


def enable_checkpointing(model: Any, source: str) -> None:
    """
    Keep one activation per layer, and recompute the others in the backward pass.

    Raises:
        ConfigError: The model, named by ``source``, has dropout, which checkpointing would activate.
    """
    for key, value in model.config.get_text_config().to_dict().items():
        if "drop" in key and isinstance(value, float) and value > 0:
            raise ConfigError(
                f"{source}: {key}={value} in its config.json would be active with trainer.gradient_checkpointing; set "
                f"{key} to 0, or switch gradient checkpointing off"
            )
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()  # transformers checkpoints only in this mode


def packed_states(body: nn.Module, batch: MicroBatch) -> Tensor:
    """[W, H] last hidden states of the packed row, each sequence computed as if it were alone."""
    return _states(body, batch.input_ids, position_ids=batch.position_ids, row=batch.row)[0]


@torch.no_grad()
def _refuse_non_finite(model: nn.Module, source: str) -> None:
    """Raise `ConfigError` if a weight is NaN or infinite: every trajectory would be garbage, and every step skipped."""
    for name, weight in model.named_parameters():
        if not weight.sum().isfinite() and not (finite := weight.isfinite()).all():
            raise ConfigError(
                f"{source}: the weight {name!r} has {(~finite).sum()} values that are NaN or infinite; copy the "
                f"directory again, or use an earlier checkpoint"
            )


@torch.no_grad()
def _pack(model: Any, source: str) -> None:
    """Switch to packed attention, and check on two short sequences that packing does not change their states."""
    ids = torch.arange(8, device=model.device)[None] % model.config.get_text_config().vocab_size
    prompt, first, second = torch.split(ids, [3, 3, 2], 1)
    alone = [_states(model.base_model, torch.cat((prompt, rest), 1)) for rest in (first, second)]
    use_packed_attention(model)
    row = Row([np.arange(6), np.array([0, 1, 2, 6, 7])], model.device)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 3, 4]], device=model.device)
    packed = _states(model.base_model, ids, position_ids=positions, row=row)
    if not torch.allclose(packed, torch.cat((alone[0], alone[1][:, 3:]), 1), rtol=TOLERANCE, atol=TOLERANCE):
        raise ConfigError(
            f"{source}: {type(model).__name__} mixes the tokens of a row outside of attention, so packed sequences "
            f"would see each other; use a model with full or sliding attention in all of its layers"
        )


def _states(body: nn.Module, ids: Tensor, **options: object) -> Tensor:
    states: Tensor = body(input_ids=ids, use_cache=False, **options).last_hidden_state
    return states
