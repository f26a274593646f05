"""
Texts of token ids, from the tokenizer.json beside a model; no tokenizer library is needed to look at samples.

    byte-level BPE   "Ġcafé"  ─▶ b" caf\\xc3\\xa9"     characters stand for bytes; one character may span tokens
    metaspace        "▁cafe"  ─▶ " cafe"              <0x0A> stands for one byte
    anything else    as it is
"""

import codecs
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

FILE = "tokenizer.json"
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
MAX_BYTES = 64 << 20
"""Largest file that is read."""


def _byte_of_character() -> dict[str, int]:
    """Characters by which byte-level tokenizers write bytes: printable ones stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(rest)}


BYTES = _byte_of_character()


class TokenTexts:
    """
    Args:
        pieces: Piece of each id, as the tokenizer's file has it.
        special: Ids of added tokens, which are written as they are.
        form: How pieces stand for text.
    """

    def __init__(
        self, pieces: Mapping[int, str] | None = None, special: frozenset[int] = frozenset(), form: str = ""
    ) -> None:
        self._pieces = pieces or {}
        self._special = special
        self._form = form

    @classmethod
    def of_run(cls, model: Any, checkpoints: Path) -> "TokenTexts":
        """Texts of the run's model, or of its newest checkpoint; empty if neither has a file that can be read."""
        folders = [Path(model)] if isinstance(model, str) and model else []
        folders += sorted(checkpoints.glob("step_*"), reverse=True)
        return next((texts for folder in folders if (texts := cls.read(folder / FILE))), cls())

    @classmethod
    def read(cls, path: Path) -> "TokenTexts":
        """Texts of one file; empty if it is no tokenizer."""
        try:
            if path.stat().st_size > MAX_BYTES:
                return cls()
            raw = msgspec.json.decode(path.read_bytes())
            vocabulary = raw["model"]["vocab"]
            added = raw.get("added_tokens") or []
            if isinstance(vocabulary, dict):
                pieces = {int(token): str(piece) for piece, token in vocabulary.items()}
            else:  # Unigram: a list of (piece, score)
                pieces = {token: str(entry[0]) for token, entry in enumerate(vocabulary)}
            pieces |= {int(entry["id"]): str(entry["content"]) for entry in added}
            form = "bytes" if _has(raw, "ByteLevel") else "metaspace" if "▁" in "".join(pieces.values()) else ""
            return cls(pieces, frozenset(int(entry["id"]) for entry in added), form)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError, IndexError):
            return cls()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def of(self, token_ids: Sequence[int]) -> list[str]:
        """
        Text of each token. A character whose bytes span several tokens is at the last of them.

        Tokens without a text are written as their id: ``⟨17⟩``.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = []
        for token in token_ids:
            piece = self._pieces.get(token)
            if piece is None or token in self._special or self._form == "":
                pending = decoder.decode(b"", final=True)
                decoder.reset()
                texts.append(pending + (f"⟨{token}⟩" if piece is None else piece))
            else:
                texts.append(decoder.decode(self._bytes(piece)))
        if texts:
            texts[-1] += decoder.decode(b"", final=True)
        return texts

    def _bytes(self, piece: str) -> bytes:
        if self._form == "bytes":
            return b"".join(
                bytes([BYTES[character]]) if character in BYTES else character.encode() for character in piece
            )
        if match := BYTE.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return piece.replace("▁", " ").encode()


def _has(raw: Any, kind: str) -> bool:
    """True if a part of the tokenizer before or after its model is of a kind."""
    parts = [raw.get("decoder"), raw.get("pre_tokenizer")]
    return f'"type":"{kind}"' in msgspec.json.encode(parts).decode()
