"""
Parquet files for people: the completions of an offline evaluation, and columns of pictures and turns that samples have
too.
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs

from asyncrl.files.atomic import output
from asyncrl.messages.trajectory import Image, Turn
from asyncrl.messages.words import FinishReason

# ── image column ──────────────────────────────────────────────────────────────────────────────
# Column of pictures in the parquet files of samples and evaluations.
#
#     images: [{path: "9f86d081...", width: 628, height: 453, bytes: b"\x89PNG..."}]      bytes: null if left out
#
# ``bytes`` and ``path`` are the keys by which viewers of datasets know a picture; ``path`` is the digest of its file.

if TYPE_CHECKING:  # importing pyarrow takes a tenth of a second
    import pyarrow as pa

ImageCell = list[dict[str, str | int | bytes | None]]


def image_cell(images: Sequence[Image], files: Sequence[bytes] = ()) -> ImageCell:
    """Cell with these pictures; without ``files`` the bytes are null."""
    return [
        {"path": image.digest.hex(), "width": image.width, "height": image.height, "bytes": content}
        for image, content in zip_longest(images, files)
    ]


def image_type() -> "pa.DataType":
    """Arrow type of the column."""
    import pyarrow as pa  # noqa: PLC0415 - see above

    fields = [("path", pa.string()), ("width", pa.int32()), ("height", pa.int32()), ("bytes", pa.binary())]
    return pa.list_(pa.struct(fields))


# ── turn column ───────────────────────────────────────────────────────────────────────────────
# Column of turns in the parquet files of samples and evaluations; empty for a single completion.
#
#     turns: [{parent: -1, observation: "", text: "...", reward: 0.0, num_context: 0, num_written: 7, ...}, ...]

TurnCell = list[dict[str, Any]]


def turn_cell(turns: Iterable[Turn]) -> TurnCell:
    """Cell with these turns."""
    return [structs.asdict(turn) for turn in turns]


def turns_of(cell: TurnCell | None) -> list[Turn]:
    """Turns of a cell; raises TypeError if it holds something else."""
    return [Turn(**turn) for turn in cell or []]


def turn_type() -> "pa.DataType":
    """Arrow type of the column."""
    import pyarrow as pa  # noqa: PLC0415 - see above

    count, number, text = pa.int32(), pa.float64(), pa.string()
    fields = [("parent", count), ("num_context", count), ("num_written", count), ("reward", number)]
    fields += [("is_trained", pa.bool_()), ("call_s", number), ("observation", text), ("text", text)]
    fields += [("seat", count), ("num_images", count)]
    return pa.list_(pa.struct(fields))


# ── completions ───────────────────────────────────────────────────────────────────────────────


class CompletionRow(Struct, frozen=True, kw_only=True):
    """One completion of one prompt with its reward, or with the reason why it has none."""

    place: int
    """Position of the prompt, from 0."""
    index: int
    """Position of the completion among those of its prompt, from 0."""
    data_source: str
    prompt: str
    reference: str
    """The answer the verifier compared with."""
    completion: str = ""
    answer: str | None = None
    """Answer the verifier extracted; empty: it found none; None: this verifier does not report answers."""
    reward: float | None = None
    """None if there is no verdict."""
    correct: float | None = None
    metrics: dict[str, float] = {}
    finish_reason: FinishReason | None = None
    num_tokens: int = 0
    failure: str = ""
    images: ImageCell = []
    """Pictures of the prompt; only the row of its first completion has their files."""
    turns: TurnCell = []
    """Turns of an episode; empty for a single completion."""


def write_completions(path: Path, rows: Sequence[CompletionRow]) -> None:
    """Write the rows in order; ``path`` is replaced atomically. Raises `ConfigError` if it cannot be written."""
    import pyarrow as pa  # noqa: PLC0415  takes a tenth of a second
    import pyarrow.parquet as pq  # noqa: PLC0415

    text, number = pa.string(), pa.float64()
    types = {
        "place": pa.int64(), "index": pa.int32(), "data_source": text, "prompt": text, "reference": text,
        "completion": text, "answer": text, "reward": number, "correct": number, "metrics": text,
        "finish_reason": text, "num_tokens": pa.int32(), "failure": text, "images": image_type(),
        "turns": turn_type(),
    }  # fmt: skip
    columns = {name: pa.array([_cell(getattr(row, name)) for row in rows], type_) for name, type_ in types.items()}
    with output(path) as unfinished:
        pq.write_table(pa.table(columns), unfinished, compression="zstd")


def _cell(value: object) -> object:
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else value
