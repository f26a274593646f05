"""
Export a checkpoint's adapters to a directory that the PEFT library loads onto the base model.

    step_000060/                               DIR/
        trainer/adapters*.safetensors          ──cast?──▶      adapter_model.safetensors, one file
        *.safetensors                          ──names──▶      target_modules of adapter_config.json
        tokenizer…                             ──copied─▶      the same
        config.json, other tensors                 ✗           README.md, the model card

DIR is complete or does not exist, as in `asyncrl.trainer.checkpoints.export`.
"""

from pathlib import Path

import msgspec
import torch

from asyncrl.config.model import weights
from asyncrl.config.model.adapter import CONFIG, WEIGHTS, adapter_config, layers_of, target_modules
from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError
from asyncrl.trainer.checkpoints.checkpoint import Manifest
from asyncrl.trainer.checkpoints.export import CARD, Dtype, copy_files, new_directory
from asyncrl.trainer.checkpoints.parts import TENSORS, stem_of
from asyncrl.trainer.checkpoints.snapshot import ADAPTERS
from asyncrl.trainer.checkpoints.stored import Stored, open_tensors
from asyncrl.trainer.checkpoints.tensor_file import write_tensors

OF_THE_MODEL = (weights.CONFIG, weights.INDEX, "generation_config.json")
"""Files of a checkpoint that a directory without the model's weights must not have."""


def export_adapter(
    folder: Path,
    manifest: Manifest,
    out: Path,
    *,
    lora: Lora,
    base: str,
    revision: str | None = None,
    card: str,
    dtype: Dtype | None = None,
) -> None:
    """
    Write the adapters of a verified checkpoint to ``out``; once this returns, they survive a power cut.

    Args:
        lora: Of the run.
        base: Name on the Hugging Face Hub, or path, of the base model.
        revision: Commit of ``base`` on the Hub; None if it is not known.
        card: Becomes README.md.
        dtype: Dtype of the adapters; None keeps float32.

    Raises:
        ConfigError: ``out`` exists, or the checkpoint has no adapters.
        LedgerError: A file is damaged.
        RunFailed: The disk failed; everything written was removed.
    """
    files = [name for name in manifest.files if Path(name).parts[0] != TENSORS]
    if not any(stem_of(Path(name).name) == ADAPTERS for name in manifest.files):
        raise ConfigError(f"{folder} has no adapters, as its run trained the model itself; export it without --adapter")
    with open_tensors(folder / TENSORS, manifest.files) as stored, new_directory(out) as partial:
        tensors = stored[ADAPTERS]
        _write(partial / WEIGHTS, tensors, getattr(torch, dtype or "float32"))
        targets = target_modules(layers_of(tensors), weights.check_weights(folder, "checkpoint"))
        config = adapter_config(lora, targets, base, revision)
        (partial / CONFIG).write_bytes(msgspec.json.format(msgspec.json.encode(config)) + b"\n")
        copy_files(folder, partial, [n for n in files if n not in OF_THE_MODEL and Path(n).suffix != ".safetensors"])
        (partial / CARD).write_text(card, encoding="utf-8")


def _write(path: Path, tensors: Stored, dtype: torch.dtype) -> None:
    empty = {name: torch.empty(tensor.shape, dtype=dtype, device="meta") for name, tensor in tensors.items()}
    write_tensors(path, empty, ((name, tensor[:].to(dtype)) for name, tensor in tensors.items()))
