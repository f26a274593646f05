"""
Small files of a model directory: its tokenizer against the model's vocabulary, its experts, and two copies compared. No
tokenizer is loaded.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.config.model.weights import MAX_HEADER, REMEDY, read_config
from asyncrl.errors import ConfigError
from asyncrl.files.foreign import MAX_BYTES, opened, read_bytes, read_json, within
from asyncrl.messages.files import FileDigest

# ── prompt files ──────────────────────────────────────────────────────────────────────────────
# Files of a Hugging Face model directory that turn a prompt into tokens and pixels: the tokenizer in whichever format
# it has, chat templates, and the processor of pictures. By name, so that no weights are among them.

VOCABULARIES = ("tokenizer.json", "*.model", "vocab.json", "vocab.txt", "tekken.json", "*.tiktoken")
"""Files of which a tokenizer has at least one."""
PROMPT_FILES = (
    *VOCABULARIES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.jinja",
    "additional_chat_templates/*.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)


MAX_VOCABULARY = 40 << 20
"""Longest file of a vocabulary; Gemma 3's has 33 MB. Those of settings have `MAX_BYTES`."""


def check_small_files(model: Path) -> None:
    """
    Raise `ConfigError` unless all that transformers reads beside weights is a regular file of the folder, within its
    limit, and JSON where its name says so.
    """
    for pattern in (*PROMPT_FILES, *END_FILES):
        is_long = pattern in (*VOCABULARIES, "merges.txt")
        limit, kind = (MAX_VOCABULARY, dict[str, msgspec.Raw]) if is_long else (MAX_BYTES, dict[str, Any])
        for path in sorted(model.glob(pattern)):
            found = within(model, str(path.relative_to(model)))
            if path.suffix == ".json":
                read_json(found, kind, limit, REMEDY)
            else:
                read_bytes(found, limit)


def has_vocabulary(model: Path) -> bool:
    return any(path.is_file() for pattern in VOCABULARIES for path in model.glob(pattern))


def prompt_files(model: Path) -> Iterator[Path]:
    """The files of `PROMPT_FILES` that a model directory has; links, as in the cache of the Hub, are followed."""
    return (path for pattern in PROMPT_FILES for path in sorted(model.glob(pattern)) if path.is_file())


# ── tokenizer ─────────────────────────────────────────────────────────────────────────────────

FAST = "tokenizer.json"
END_FILES = ("generation_config.json", "config.json")
"""Files that name tokens which end a completion."""


class _Vocabulary(Struct):
    vocab: dict[str, int] | list[Any] = {}


class _TextEnds(Struct):
    eos_token_id: int | list[int] | None = None


class _Ends(_TextEnds):
    text_config: _TextEnds | None = None


class _Fast(Struct):
    model: _Vocabulary


def check_tokenizer(model: Path, setting: str, vocab_size: int | None = None) -> None:
    """
    Raise `ConfigError` if the directory has no tokenizer, that of another model, or end tokens that the model lacks.

    These are in config.json and generation_config.json; negative ones are ignored. Which ids a tokenizer has is known
    once it is loaded: see `asyncrl.weights.contents.token_ids`.

    Args:
        setting: Key of the path, for messages.
        vocab_size: Number of token ids of the model; None if it is not known.
    """
    check_small_files(model)
    if not has_vocabulary(model):
        raise ConfigError(
            f"{setting}={model} has no tokenizer: expected {FAST} or another of a tokenizer's files beside "
            f"config.json; copy them from the model's origin"
        )
    highest = _highest_id(model / FAST)
    if vocab_size is None:
        return
    for name in END_FILES:
        if (last := max(_end_ids(model / name), default=-1)) >= vocab_size:
            raise ConfigError(
                f"{setting}={model}: {name} names the end token {last}, but the model knows 0 to {vocab_size - 1}; "
                f"repair eos_token_id"
            )
    if highest >= vocab_size:
        raise ConfigError(foreign_tokenizer(f"{setting}={model}", highest, vocab_size))


def foreign_tokenizer(source: str, highest: int, vocab_size: int) -> str:
    """Refusal of a tokenizer whose vocabulary, without added tokens, ends with an id that the model does not have."""
    return (
        f"{source}: the tokenizer has token ids up to {highest}, but the model knows 0 to {vocab_size - 1}; use the "
        f"model's own tokenizer"
    )


def _end_ids(path: Path) -> list[int]:
    """Ids of ``eos_token_id`` in a file; none if there is no such file or it is no JSON, which others report."""
    try:
        found = read_json(path, _Ends)
    except ConfigError:
        return []
    ends = [found.eos_token_id, found.text_config.eos_token_id if found.text_config else None]
    return [one for ids in ends for one in (ids if isinstance(ids, list) else [ids]) if isinstance(one, int)]


def _highest_id(path: Path) -> int:
    """Highest id of the vocabulary in a tokenizer.json, without added tokens; -1 without a vocabulary or a file."""
    if not path.is_file():
        return -1
    found = read_json(path, _Fast, MAX_VOCABULARY, REMEDY)
    vocab = found.model.vocab
    ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))  # a list has the token of id i at place i
    return max(ids, default=-1)


# ── experts ───────────────────────────────────────────────────────────────────────────────────
# Number of experts of a model directory, by its config.json alone.

KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys of config.json with the number of experts, which depend on the family of the model."""


def num_experts(model: Path) -> int:
    """Number of experts in a layer; 0 for a dense model. Raises `ConfigError` if config.json cannot be read."""
    config = read_config(model)
    text = config.get("text_config")
    for part in (text if isinstance(text, dict) else config, config):
        for key in KEYS:
            if isinstance(number := part.get(key), int) and number > 1:
                return number
    return 0


# ── files ─────────────────────────────────────────────────────────────────────────────────────
# Comparison of two copies of a model directory: sizes, and digests of small files and of safetensors headers.
#
# The values of the weights are not read: they are gigabytes, and rollouts receive those of the trainer.

SUFFIXES = {".json", ".safetensors", ".model", ".txt", ".jinja"}
"""Kinds of files that a model is made of, beside its prompt files."""


def describe(model: Path) -> list[FileDigest]:
    """
    Files of a model directory, by their paths in it; none if there is no such directory.

    Raises:
        ConfigError: One of them cannot be read.
    """
    files = {path for path in model.glob("*") if path.suffix in SUFFIXES and path.is_file()}
    return [_digest(path, str(path.relative_to(model))) for path in sorted(files.union(prompt_files(model)))]


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
    read = {str(path.relative_to(model)) for path in prompt_files(model)}
    extra = next((name for name in found if name in read or name.endswith(".safetensors")), "")
    return f"{extra} is too many" if extra else ""


def _digest(path: Path, name: str) -> FileDigest:
    with opened(path) as file:
        if path.suffix == ".safetensors":  # its header: names, types and shapes of the tensors
            length = file.read(8)
            digest = hashlib.sha256(length + file.read(min(int.from_bytes(length, "little"), MAX_HEADER)))
        else:
            digest = hashlib.file_digest(file, "sha256")
        return FileDigest(name, os.fstat(file.fileno()).st_size, digest.digest())
