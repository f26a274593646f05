"""Every completion of an examination, for people to look at: one parquet file, a row a completion."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from asyncrl.files.atomic import replacing
from asyncrl.messages import FinishReason


class CompletionRow(Struct, frozen=True, kw_only=True):
    """One completion of one prompt, and the verdict on it, or why there is none."""

    place: int
    """Of the prompt: so many come before it."""
    index: int
    """Of the completion among those of its prompt."""
    data_source: str
    prompt: str
    """As text."""
    reference: str
    """What the verifier judged by."""
    completion: str = ""
    answer: str | None = None
    """What the verifier took for the answer; None if it does not say."""
    reward: float | None = None
    """None without a verdict."""
    correct: float | None = None
    metrics: dict[str, float] = {}
    """Further numbers of the verifier."""
    finish_reason: FinishReason | None = None
    """None if nothing was written."""
    num_tokens: int = 0
    failure: str = ""
    """Why there is no verdict."""


def write_completions(path: Path, rows: Sequence[CompletionRow]) -> None:
    """
    Write them in order; ``path`` is replaced at once.

    Raises:
        OSError: The disk does not take it.
    """
    import pyarrow as pa  # noqa: PLC0415  a tenth of a second that only this needs
    import pyarrow.parquet as pq  # noqa: PLC0415

    text, number = pa.string(), pa.float64()
    kinds = {
        "place": pa.int64(), "index": pa.int32(), "data_source": text, "prompt": text, "reference": text,
        "completion": text, "answer": text, "reward": number, "correct": number, "metrics": text,
        "finish_reason": text, "num_tokens": pa.int32(), "failure": text,
    }  # fmt: skip
    columns = {name: pa.array([_cell(getattr(row, name)) for row in rows], kind) for name, kind in kinds.items()}
    with replacing(path, durable=False) as unfinished:
        pq.write_table(pa.table(columns), unfinished, compression="zstd")


def _cell(value: object) -> object:
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else value
