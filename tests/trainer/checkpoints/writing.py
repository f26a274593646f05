"""Write and read a checkpoint of one rank."""

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from asyncrl.trainer.checkpoints.checkpoint import begin, finish, write_part
from asyncrl.trainer.checkpoints.snapshot import TENSORS, Snapshot


def write(directory: Path, *, step: int, snapshot: Snapshot, **options: Any) -> Path:
    begin(directory, step)
    parts = write_part(directory, step, snapshot)
    return finish(directory, step=step, snapshot=snapshot, parts=parts, **options)


def read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    return load_file(folder / TENSORS / f"{name}.safetensors")


def write_model(folder: Path, snapshot: Snapshot) -> None:
    """Write the model alone, without a tokenizer."""
    folder.mkdir(exist_ok=True)
    for config in snapshot.configs:
        config.save_pretrained(folder)
    save_file(snapshot.weights, folder / "model.safetensors", metadata={"format": "pt"})
