"""The tokenizer of a model directory against the model's vocabulary, by its files; no tokenizer is loaded."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.config.model.prompt_files import has_vocabulary
from asyncrl.config.model.safetensors_header import REMEDY
from asyncrl.errors import ConfigError

FAST = "tokenizer.json"
END_FILES = ("generation_config.json", "config.json")
"""Files that name tokens which end a completion."""


class _Token(Struct):
    id: int


class _Vocabulary(Struct):
    vocab: dict[str, int] | list[Any] = {}


class _TextEnds(Struct):
    eos_token_id: int | list[int] | None = None


class _Ends(_TextEnds):
    text_config: _TextEnds | None = None


class _Fast(Struct):
    model: _Vocabulary
    added_tokens: list[_Token] = []


def check_tokenizer(model: Path, setting: str, vocab_size: int | None = None) -> None:
    """
    Raise `ConfigError` if the directory has no tokenizer, or names token ids that the model does not have.

    These are ids of the tokenizer, and end tokens in config.json and generation_config.json; a negative one is none.

    Args:
        setting: Key of the path, for messages.
        vocab_size: Number of token ids of the model; None if it is not known.
    """
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
        raise ConfigError(
            f"{setting}={model}: the tokenizer has token ids up to {highest}, but the model knows 0 to "
            f"{vocab_size - 1}; use the model's own tokenizer"
        )


def num_token_ids(model: Path, num_rows: int) -> int:
    """
    Number of token ids of a model directory that can be written: those beyond the tokenizer's last one mean no text.

    Many models have more rows than their tokenizer has tokens, to fill up blocks. Without a tokenizer.json all count.

    Args:
        num_rows: Rows of the token embedding.
    """
    highest = _highest_id(model / FAST)
    ends = [token_id for name in END_FILES for token_id in _end_ids(model / name)]
    return min(num_rows, max(highest, *ends, -1) + 1) if highest >= 0 else num_rows


def _end_ids(path: Path) -> list[int]:
    """Ids of ``eos_token_id`` in a file; none if there is no such file or it is no JSON, which others report."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Ends)
    except (OSError, msgspec.MsgspecError):
        return []
    ends = [found.eos_token_id, found.text_config.eos_token_id if found.text_config else None]
    return [one for ids in ends for one in (ids if isinstance(ids, list) else [ids]) if isinstance(one, int)]


def _highest_id(path: Path) -> int:
    """Highest token id in a tokenizer.json; -1 if there is none, or no such file."""
    if not path.is_file():
        return -1
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Fast)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a tokenizer: {error}; {REMEDY}") from error
    vocab = found.model.vocab
    ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))  # a list has the token of id i at place i
    return max(max(ids, default=-1), max((token.id for token in found.added_tokens), default=-1))
