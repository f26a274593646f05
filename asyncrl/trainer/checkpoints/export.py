"""
Export a checkpoint to a directory that others load: its model for programs of Hugging Face models, or its adapters for
PEFT.

    step_000060/                               DIR/
        config.json, tokenizer…    ──copied─▶      the same
        *.safetensors              ──cast?──▶      the same, or in another dtype
        trainer/, manifest.json        ✗           README.md, the model card, and asyncrl.toml

The files are written beside DIR under a hidden name, flushed to disk, and renamed: DIR is complete or does not exist.
`asyncrl.trainer.checkpoints.export` writes the adapter alone.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from asyncrl.config.model import weights
from asyncrl.config.model.adapter import CONFIG, WEIGHTS, adapter_config, layers_of, target_modules
from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError, LedgerError, RunFailed
from asyncrl.files.atomic import flush, flush_folder, refuse_existing
from asyncrl.files.checkpoints import BEST, SETTINGS, step_folder
from asyncrl.records.run_record import overview
from asyncrl.trainer.checkpoints import checkpoint
from asyncrl.trainer.checkpoints.checkpoint import Manifest
from asyncrl.trainer.checkpoints.snapshot import ADAPTERS, TENSORS, open_tensors, stem_of, write_tensors
from asyncrl.trainer.checkpoints.writer import Best

CARD = "README.md"

Dtype = Literal["float32", "bfloat16", "float16"]


def find_checkpoint(directory: Path, step: int | Literal["best"] | None) -> tuple[Path, Manifest]:
    """
    Find and verify the checkpoint of ``step``; None takes the newest intact one.

    Raises:
        ConfigError: There is no such checkpoint; names the existing ones.
        LedgerError: It is damaged.
    """
    if step is None:
        if (found := checkpoint.search(directory).found) is None:
            why = overview(directory.parent).no_checkpoint or "those there are damaged; `asyncrl audit` says what is"
            raise ConfigError(f"there is no intact checkpoint in {directory}: {why}")
        return found
    number = _best(directory) if step == "best" else step
    folder = step_folder(directory, number)
    if not folder.is_dir():
        steps = ", ".join(str(manifest.step) for _, manifest in checkpoint.complete(directory)) or "none"
        raise ConfigError(f"there is no checkpoint of step {number} in {directory}; existing steps: {steps}")
    return folder, checkpoint.verify(folder)


def export(
    folder: Path, manifest: Manifest, out: Path, *, card: str, settings: str = "", dtype: Dtype | None = None
) -> None:
    """
    Write the model of a verified checkpoint to ``out``; once this returns, it survives a power cut.

    ``card`` becomes README.md, ``settings`` asyncrl.toml unless they are empty, and ``dtype`` the dtype of
    floating-point weights; None keeps theirs.

    Raises:
        ConfigError: ``out`` exists.
        RunFailed: The disk failed; everything written was removed.
    """
    with new_directory(out) as partial:
        copy_files(folder, partial, [name for name in manifest.files if Path(name).parts[0] != TENSORS])
        if dtype:
            _cast(partial, dtype)
        (partial / CARD).write_text(card, encoding="utf-8")
        if settings:
            (partial / SETTINGS).write_text(settings, encoding="utf-8")


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """
    Hidden directory that becomes ``out`` once the block has filled it; once this returns, it survives a power cut.

    Raises:
        ConfigError: ``out`` exists.
        RunFailed: The disk failed; everything written was removed.
    """
    refuse_existing(out)
    partial = out.parent / f".{out.name}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        flush_folder(partial)
        partial.rename(out)
        flush(out.parent)
    except (OSError, SafetensorError) as error:  # safetensors raises the latter for disk errors.
        reason = getattr(error, "strerror", None) or error
        raise RunFailed(f"cannot write {out}: {reason}; free space or repair the disk") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def copy_files(folder: Path, out: Path, names: Iterable[str]) -> None:
    """Copy some files of a checkpoint, named by their paths in it, to ``out``."""
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, out / name)


def _cast(folder: Path, dtype: Dtype) -> None:
    """Cast the weights in ``folder`` to ``dtype``, file by file, so that no more than one is in memory."""
    target, total_bytes = getattr(torch, dtype), 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
        cast = {name: t.to(target) if t.is_floating_point() else t for name, t in tensors.items()}
        total_bytes += sum(tensor.nbytes for tensor in cast.values())
        path.unlink()  # The tensors may be mapped from this file, so write a new one instead of into it.
        save_file(cast, path, metadata)
    _edit(folder / "config.json", lambda config: config | {"dtype": dtype})
    _edit(
        folder / checkpoint.INDEX, lambda index: index | {"metadata": index["metadata"] | {"total_size": total_bytes}}
    )


def _edit(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    if path.exists():
        changed = change(msgspec.json.decode(path.read_bytes()))
        path.write_bytes(msgspec.json.format(msgspec.json.encode(changed)) + b"\n")


def _best(directory: Path) -> int:
    path = directory / BEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Best).step
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no {path}: the best checkpoint is recorded only with checkpoint.keep_best; "
            "without --step, the newest is exported"
        ) from error
    except msgspec.DecodeError as error:
        raise LedgerError(f"{path} is damaged: {error}; give the step by number") from error


# ── adapter export ────────────────────────────────────────────────────────────────────────────
# Export a checkpoint's adapters to a directory that the PEFT library loads onto the base model.
#
#     step_000060/                               DIR/
#         trainer/adapters*.safetensors          ──cast?──▶      adapter_model.safetensors, one file
#         *.safetensors                          ──names──▶      target_modules of adapter_config.json
#         tokenizer…                             ──copied─▶      the same
#         config.json, other tensors                 ✗           README.md, the model card
#
# DIR is complete or does not exist, as in `asyncrl.trainer.checkpoints.export`.

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
        target = getattr(torch, dtype or "float32")
        empty = {name: torch.empty(tensor.shape, dtype=target, device="meta") for name, tensor in tensors.items()}
        write_tensors(partial / WEIGHTS, empty, ((name, tensor[:].to(target)) for name, tensor in tensors.items()))
        targets = target_modules(layers_of(tensors), weights.check_weights(folder, "checkpoint"))
        config = adapter_config(lora, targets, base, revision)
        (partial / CONFIG).write_bytes(msgspec.json.format(msgspec.json.encode(config)) + b"\n")
        copy_files(folder, partial, [n for n in files if n not in OF_THE_MODEL and Path(n).suffix != ".safetensors"])
        (partial / CARD).write_text(card, encoding="utf-8")
