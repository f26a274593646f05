"""The completions of an offline evaluation as one parquet file, for people to read."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from asyncrl.evaluation.image_column import ImageCell, image_type
from asyncrl.evaluation.turn_column import TurnCell, turn_type
from asyncrl.files.output import output
from asyncrl.messages.words import FinishReason


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
