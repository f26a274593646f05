"""
One sample, or the samples of a group, as read from their file: texts, tokens with their log-probs and versions, turns.

A sample is named by its split, its file's name and its row; a name that no listing gave is refused, so that a request
cannot lead out of the folder.
"""

import codecs
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.errors import LedgerError
from asyncrl.messages.trajectory import Span, Turn
from asyncrl.records.episode_view import views
from asyncrl.records.evaluation_files import turns_of
from asyncrl.records.samples import HELD_OUT
from asyncrl.tools.dashboard.query import RefusedAnswer

# ── token texts ───────────────────────────────────────────────────────────────────────────────
# Texts of token ids, from the tokenizer.json beside a model; no tokenizer library is needed to look at samples.
#
#     byte-level BPE   "Ġcafé"  ─▶ b" caf\xc3\xa9"     characters stand for bytes; one character may span tokens
#     metaspace        "▁cafe"  ─▶ " cafe"              <0x0A> stands for one byte
#     anything else    as it is

FILE = "tokenizer.json"
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
MAX_BYTES = 64 << 20
"""Largest file that is read."""


PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTES = {chr(byte): byte for byte in PRINTABLE} | {
    chr(256 + place): byte for place, byte in enumerate(byte for byte in range(256) if byte not in PRINTABLE)
}
"""Bytes by the characters with which byte-level tokenizers write them: printable ones stand for themselves."""


class TokenTexts:
    """
    Texts of token ids, by the pieces of a tokenizer.

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
            around = msgspec.json.encode([raw.get("decoder"), raw.get("pre_tokenizer")])
            is_byte_level = b'"type":"ByteLevel"' in around
            form = "bytes" if is_byte_level else "metaspace" if "▁" in "".join(pieces.values()) else ""
            return cls(pieces, frozenset(int(entry["id"]) for entry in added), form)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError, IndexError):
            return cls()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def texts_of(self, token_ids: Sequence[int]) -> list[str]:
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


# ── sample view ───────────────────────────────────────────────────────────────────────────────

FILE_NAME = re.compile(r"(step|version)_[0-9]{1,12}\.parquet")
EXCERPT = 160
"""Characters of a prompt or completion in a list."""
MAX_TOKENS = 20_000
"""Tokens of one sample that are sent; the rest is counted."""
MAX_TEXT = 200_000
"""Characters of one text that are sent."""
MAX_GROUP = 64
"""Samples of one group that are sent."""
TRAINED_LOGPROBS = "logprobs"
"""Column of log-probs under the policy that was trained; a file may have it, and ratios are then shown."""


def sample_file(folder: Path, split: str, name: str) -> Path:
    """A file below the folder of samples; raises `Refused` unless it exists there."""
    path = (folder / HELD_OUT if split == "held_out" else folder) / name
    if not FILE_NAME.fullmatch(name) or not path.is_file():
        raise RefusedAnswer(404, f"there is no samples file {name!r}")
    return path


def excerpts(path: Path, rows: Sequence[int]) -> list[dict[str, str]]:
    """Prompt and completion of some rows, long ones cut; raises `Refused` if the file has no such row."""
    table = _read(path, ["prompt", "completion"])
    if any(row >= table.num_rows for row in rows):
        raise RefusedAnswer(404, f"{path.name} has {table.num_rows} rows")
    forms = {"prompt": _start, "completion": _ends}
    return [{name: form(table[name][row].as_py() or "", EXCERPT) for name, form in forms.items()} for row in rows]


def _ends(text: str, most: int) -> str:
    """Beginning and end of a text: the end of a completion is what a reward reads."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} … {len(text) - most} more … {text[-half:]}"


def group(path: Path, group_id: int, texts: TokenTexts) -> list[dict[str, Any]]:
    """Every sample of a group in one file, by index; raises `Refused` if there is none."""
    import pyarrow.compute as pc

    table = _read(path, None)
    found = table.filter(pc.equal(table["group_id"], group_id)).slice(0, MAX_GROUP)
    if not found.num_rows:
        raise RefusedAnswer(404, f"{path.name} has no group {group_id}")
    return sorted((sample(row, texts) for row in found.to_pylist()), key=lambda view: view["index"])


def picture(path: Path, group_id: int, number: int) -> tuple[bytes, str]:
    """File and media type of a picture of a group's prompt; raises `Refused` if it is not stored, or no picture."""
    import pyarrow.compute as pc

    table = _read(path, ["group_id", "images"])
    if "images" in table.column_names:
        for images in table.filter(pc.equal(table["group_id"], group_id))["images"].to_pylist():
            if images and number < len(images) and (content := images[number]["bytes"]):
                return content, _media_type(content)
    raise RefusedAnswer(404, f"{path.name} has no picture {number} of group {group_id}")


def sample(row: dict[str, Any], texts: TokenTexts) -> dict[str, Any]:
    """A row of a samples file as the page shows it."""
    turns, spans = turns_of(row.get("turns")), [Span(**span) for span in row["spans"] or []]
    behavior, trained = row["behavior_logprobs"] or [], row.get(TRAINED_LOGPROBS) or []
    tokens = _tokens(row["completion_ids"] or [], behavior, trained, spans, texts)
    return {
        **{name: row.get(name) for name in ("step", "group_id", "index", "reward", "finish_reason", "num_tokens")},
        **{name: row.get(name) for name in ("oldest_version", "staleness", "node")},
        "data_source": row.get("data_source") or "",
        "prompt": _start(row["prompt"] or "", MAX_TEXT),
        "completion": _start(row["completion"] or "", MAX_TEXT),
        "answer": _start(row["answer"] or "", MAX_TEXT),
        "metrics": _metrics(row.get("metrics")),
        "num_images": len(row.get("images") or []),
        "tokens": tokens,
        "has_texts": bool(texts),
        "left_out": max(0, len(row["completion_ids"] or []) - MAX_TOKENS),
        "logprob_sum": _rounded(sum(behavior)) if behavior else None,
        "turns": _turns(turns),
    }


def _turns(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    start, found = 0, []
    for turn, view in zip(turns, views(turns), strict=True):
        found.append(
            {
                "title": view.title,
                "observation": _start(view.observation, MAX_TEXT),
                "text": _start(view.text, MAX_TEXT),
                "facts": view.facts,
                "is_trained": turn.is_trained,
                "start": start,
                "end": start + turn.num_written,
            }
        )
        start += turn.num_written
    return found


def _tokens(
    ids: Sequence[int], behavior: Sequence[float], trained: Sequence[float], spans: Sequence[Span], texts: TokenTexts
) -> dict[str, list[Any]]:
    """Columns of the first `MAX_TOKENS` tokens; ``ratio`` is trained over behaviour, empty if it was not recorded."""
    ids = ids[:MAX_TOKENS]
    versions = [-1] * len(ids)
    for span in spans:
        for place in range(max(span.start, 0), min(span.end, len(ids))):
            versions[place] = span.policy_version
    ratios = [math.exp(min(new - old, 50.0)) for new, old in zip(trained, behavior, strict=False)]
    return {
        "id": list(ids),
        "text": texts.texts_of(ids),
        "logprob": [_rounded(value) for value in behavior[: len(ids)]],
        "ratio": [_rounded(value) for value in ratios[: len(ids)]],
        "version": versions,
    }


def _read(path: Path, columns: list[str] | None) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            known = file.schema_arrow.names
            wanted = None if columns is None else [name for name in columns if name in known]
            return file.read(columns=wanted, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise LedgerError(f"{path.name} cannot be read: {str(error).partition(chr(10))[0]}") from error


def _metrics(raw: Any) -> dict[str, Any]:
    try:
        return msgspec.json.decode(raw or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, TypeError):
        return {}


def _media_type(content: bytes) -> str:
    """Only pictures that a browser decodes and that hold no scripts, whatever the file says it is."""
    for start, kind in ((b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif")):
        if content.startswith(start):
            return kind
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    raise RefusedAnswer(415, "the picture is neither PNG, JPEG, GIF nor WebP")


def _start(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} … {len(text) - most} more characters"


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None
