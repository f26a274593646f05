"""
Comparison of two copies of a model directory: sizes, and digests of small files and of safetensors headers.

The values of the weights are not read: they are gigabytes, and rollouts receive those of the trainer.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from asyncrl.config.model.safetensors_header import MAX_HEADER
from asyncrl.errors import ConfigError
from asyncrl.messages.files import FileDigest

SUFFIXES = {".json", ".safetensors", ".model", ".txt", ".jinja"}
"""Kinds of files that a model and its tokenizer are made of."""


def describe(model: Path) -> list[FileDigest]:
    """
    Files of a model directory, by name; none if there is no such directory.

    Raises:
        ConfigError: One of them cannot be read.
    """
    files = sorted(path for path in model.glob("*") if path.suffix in SUFFIXES and path.is_file())
    return [_digest(path) for path in files]


def difference(model: Path, expected: Sequence[FileDigest]) -> str:
    """First file of ``model`` that is not as expected, in words; empty if there is none. Raises as `describe`."""
    found = {file.name: file for file in describe(model)}
    for file in expected:
        own = found.pop(file.name, None)
        if own is None:
            return f"{file.name} is missing"
        if own.size != file.size:
            return f"{file.name} has {own.size:,} bytes, expected {file.size:,}"
        if own.sha256 != file.sha256:
            part = "header" if file.name.endswith(".safetensors") else "content"
            return (
                f"the {part} of {file.name} has the digest {own.sha256.hex()[:12]}, expected {file.sha256.hex()[:12]}"
            )
    extra = next((name for name in found if name.endswith(".safetensors")), "")
    return f"{extra} is too many" if extra else ""


def _digest(path: Path) -> FileDigest:
    try:
        with path.open("rb") as file:
            content = _header(file) if path.suffix == ".safetensors" else file.read()
        return FileDigest(path.name, path.stat().st_size, hashlib.sha256(content).digest())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def _header(file: BinaryIO) -> bytes:
    """Header of a safetensors file: its length, and names, types and shapes of the tensors."""
    length = file.read(8)
    return length + file.read(min(int.from_bytes(length, "little"), MAX_HEADER))
