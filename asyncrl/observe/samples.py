"""
Every trajectory the trainer consumed, for people to look at: one parquet file a step.

    samples/step_000041.parquet     a row a trajectory: what was asked, what was written by whom, what it was worth

Any tool that reads parquet can browse them: ``duckdb -c "select reward, completion from 'samples/*.parquet'"``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from asyncrl.files.atomic import replacing
from asyncrl.messages import FinishReason, Prompt, Span

if TYPE_CHECKING:  # importing pyarrow takes a tenth of a second, which `asyncrl --help` need not wait for
    import pyarrow as pa


class SampleRow(Struct, frozen=True, kw_only=True):
    """One consumed trajectory. T is the number of completion tokens."""

    step: int
    """The optimizer step that consumed it."""
    group_id: int
    index: int
    prompt: str
    """As text; a chat after its template."""
    completion: str
    answer: str = ""
    """The reference the verifier judged by."""
    reward: float
    metrics: dict[str, float] = {}
    """Further numbers of the verifier."""
    finish_reason: FinishReason
    spans: list[Span]
    """Who wrote what."""
    oldest_version: int
    staleness: int
    """Versions between ``oldest_version`` and the trainer's at consumption."""
    node: str
    """The rollout that finished it."""
    completion_ids: bytes | memoryview
    """[T] int32, little-endian. Borrowed for the call."""
    behavior_logprobs: bytes | memoryview
    """[T] float32, nats. Borrowed for the call."""


class SamplesWriter:
    """Writes one file a step into ``folder``. A step that is done again replaces its file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, step: int, rows: Sequence[SampleRow]) -> Path:
        """
        Keep the trajectories of one step.

        Takes milliseconds (2 for 128 rows of 128 tokens, 50 for 1,280): an event loop calls it in a thread.

        Returns:
            The file.
        """
        import pyarrow.parquet as pq  # noqa: PLC0415 - see above

        path = self._folder / f"step_{step:06d}.parquet"
        # Not durable: a file lost to a power cut costs a look at one step, and waiting for the disk costs every step.
        with replacing(path, durable=False) as unfinished:
            pq.write_table(_table(rows), unfinished, compression="zstd")
        return path


def prompt_text(prompt: Prompt) -> str:
    """What a prompt asks; of a chat every turn, on a line of its own that begins with the role."""
    return prompt.text or "\n".join(f"{turn.get('role', '')}: {turn.get('content', '')}" for turn in prompt.chat)


def _table(rows: Sequence[SampleRow]) -> "pa.Table":
    import pyarrow as pa  # noqa: PLC0415 - see above

    span = pa.struct([("policy_version", pa.int64()), ("start", pa.int32()), ("end", pa.int32())])
    return pa.table(
        {
            "step": pa.array([row.step for row in rows], pa.int64()),
            "group_id": pa.array([row.group_id for row in rows], pa.int64()),
            "index": pa.array([row.index for row in rows], pa.int32()),
            "prompt": pa.array([row.prompt for row in rows], pa.string()),
            "completion": pa.array([row.completion for row in rows], pa.string()),
            "answer": pa.array([row.answer for row in rows], pa.string()),
            "reward": pa.array([row.reward for row in rows], pa.float64()),
            "metrics": pa.array([msgspec.json.encode(row.metrics).decode() for row in rows], pa.string()),
            "finish_reason": pa.array([row.finish_reason for row in rows], pa.string()),
            "num_tokens": pa.array([len(_bytes(row.completion_ids)) // 4 for row in rows], pa.int32()),
            "spans": pa.array([[_span(part) for part in row.spans] for row in rows], pa.list_(span)),
            "oldest_version": pa.array([row.oldest_version for row in rows], pa.int64()),
            "staleness": pa.array([row.staleness for row in rows], pa.int32()),
            "node": pa.array([row.node for row in rows], pa.string()),
            "completion_ids": _lists([row.completion_ids for row in rows], pa.int32()),
            "behavior_logprobs": _lists([row.behavior_logprobs for row in rows], pa.float32()),
        }
    )


def _span(span: Span) -> dict[str, int]:
    return {"policy_version": span.policy_version, "start": span.start, "end": span.end}


def _bytes(buffer: bytes | memoryview) -> memoryview:
    return memoryview(buffer).cast("B")


def _lists(buffers: Sequence[bytes | memoryview], kind: Any) -> "pa.ListArray":
    """Raw four-byte numbers as a column of lists, without a Python object per token."""
    import pyarrow as pa  # noqa: PLC0415 - see above

    offsets = [0]
    for buffer in buffers:
        offsets.append(offsets[-1] + len(_bytes(buffer)) // 4)
    values = pa.Array.from_buffers(kind, offsets[-1], [None, pa.py_buffer(b"".join(map(_bytes, buffers)))])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
