"""
Every trajectory the trainer consumed, for people to read: one parquet file per optimizer step.

    samples/step_000041.parquet                 one row per trajectory: prompt, completion, reward, versions, ids
    samples/held_out/version_000040.parquet     the same of held-out completions, with evaluation.answers

Any tool that reads parquet can browse them: ``duckdb -c "select reward, completion from 'samples/*.parquet'"``.
"""

import hashlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs

from asyncrl.errors import LedgerError
from asyncrl.files.atomic import replacing
from asyncrl.messages.trajectory import Image, Prompt, Span, Turn
from asyncrl.messages.words import FinishReason
from asyncrl.records.evaluation_files import image_cell, image_type, turn_cell, turn_type, turns_of

if TYPE_CHECKING:  # importing pyarrow takes a tenth of a second, which `asyncrl --help` need not wait for
    import pyarrow as pa


HELD_OUT = "held_out"
"""Folder of the files of evaluations."""
ARRAYS = ("completion_ids", "behavior_logprobs", "context_ids")
OF_TURNS = ("num_turns", "context_tokens")
"""Columns that a file may lack: its trajectories are single completions then."""


class SampleRow(Struct, frozen=True, kw_only=True):
    """One consumed trajectory, or one held-out completion. T is the number of completion tokens."""

    step: int
    """Number of the step; for a held-out completion, the steps trained before it."""
    group_id: int
    index: int
    prompt: str
    """Text as given to the model: a chat with its template applied."""
    completion: str
    answer: str = ""
    """Reference answer given to the verifier."""
    reward: float
    metrics: dict[str, float] = {}
    finish_reason: FinishReason
    spans: list[Span]
    """Policy version of each range of tokens."""
    oldest_version: int
    staleness: int
    """Trainer's version at consumption minus ``oldest_version``."""
    node: str
    completion_ids: bytes | memoryview
    """[T] int32, little-endian. Borrowed until `SamplesWriter.write` returns."""
    behavior_logprobs: bytes | memoryview
    """[T] float32, nats. Borrowed until `SamplesWriter.write` returns."""
    images: Sequence[Image] = ()
    """Pictures of the prompt."""
    image_files: Sequence[bytes] = ()
    """Files of the pictures; only one row of a group has them."""
    turns: Sequence[Turn] = ()
    """Turns of an episode; empty for a single completion."""
    data_source: str = ""
    """Dataset of the prompt."""
    context_ids: bytes | memoryview = b""
    """[sum of ``num_context``] int32, tokens of the environment. Borrowed until `SamplesWriter.write` returns."""


class SampleFacts(Struct, frozen=True, kw_only=True):
    """The numbers of a `SampleRow`, as an audit reads them back."""

    step: int
    group_id: int
    index: int
    reward: float
    staleness: int
    num_tokens: int
    spans: list[Span]
    num_turns: int = 1
    context_tokens: int = 0
    """Tokens of the environment."""
    oldest_version: int | None = None
    metrics: dict[str, float | None] | None = None
    """Metrics of the verifier."""
    node: str = ""
    finish_reason: str = ""
    completion: str = ""
    prompt: str = ""
    answer: str = ""
    arrays: str = ""
    """`digest_of` its arrays; empty unless it was asked for."""


def digest_of(*arrays: bytes | memoryview) -> str:
    """SHA-256 of the token ids, the log-probs and the tokens of the environment of a trajectory."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(len(_bytes(array)).to_bytes(8))
        digest.update(array)
    return digest.hexdigest()


def read_facts(path: Path, *, arrays: bool = False) -> list[SampleFacts]:
    """
    Read what an audit compares in a samples file, with the digest of the ``arrays`` of each row if asked for.

    Raises `LedgerError` if the file is missing or damaged.
    """
    import pyarrow as pa  # noqa: PLC0415 - see above
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        known = pq.read_schema(path).names
        fields = [name for name in SampleFacts.__struct_fields__ if name != "arrays"]
        columns = [name for name in fields if name in known or name not in OF_TURNS]
        rows = pq.read_table(path, columns=columns).to_pylist()
        if arrays:
            found = [_lists_of(pq.read_table(path, columns=[name]), name) for name in ARRAYS if name in known]
            rows = [row | {"arrays": digest_of(*own)} for row, *own in zip(rows, *found, strict=True)]
        for row in rows:
            row |= {"spans": [Span(**span) for span in row["spans"]], "metrics": msgspec.json.decode(row["metrics"])}
        return [msgspec.convert(row, SampleFacts) for row in rows]
    except (pa.ArrowException, OSError, TypeError, msgspec.DecodeError) as error:
        raise LedgerError(f"{path} cannot be read as a samples file: {str(error).partition(chr(10))[0]}") from error


def _lists_of(table: "pa.Table", name: str) -> list[memoryview]:
    """Buffers of a column of lists of four-byte numbers, without a Python object per token."""
    column = table[name].combine_chunks()
    offsets, values = column.offsets.to_pylist(), memoryview(column.values.buffers()[1] or b"").cast("B")
    return [values[4 * begin : 4 * end] for begin, end in pairwise(offsets)]


class SamplesWriter:
    """Writes files below ``folder``, one per step and one per evaluation. A repeated one replaces its file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, step: int) -> Path:
        """See `step_file`."""
        return step_file(self._folder, step)

    def answers_path(self, policy_version: int) -> Path:
        """File of the evaluation of a version, whether it exists or not."""
        return self._folder / HELD_OUT / f"version_{policy_version:06d}.parquet"

    def write(self, path: Path, rows: Sequence[SampleRow]) -> Path:
        """Write one of the files. Blocks (2 ms for 128 rows of 128 tokens, 50 ms for 1,280): call it in a thread."""
        import pyarrow.parquet as pq  # noqa: PLC0415 - see above

        path.parent.mkdir(exist_ok=True)
        # Not durable: a power cut may lose the rows of one step, but syncing would slow down every step.
        with replacing(path, durable=False) as unfinished:
            pq.write_table(_table(rows), unfinished, compression="zstd")
        return path


def prompt_text(prompt: Prompt) -> str:
    """Text of a prompt; of a chat, one line per turn, ``role: content``."""
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
            "spans": pa.array([[structs.asdict(part) for part in row.spans] for row in rows], pa.list_(span)),
            "oldest_version": pa.array([row.oldest_version for row in rows], pa.int64()),
            "staleness": pa.array([row.staleness for row in rows], pa.int32()),
            "node": pa.array([row.node for row in rows], pa.string()),
            "completion_ids": _lists([row.completion_ids for row in rows], pa.int32()),
            "behavior_logprobs": _lists([row.behavior_logprobs for row in rows], pa.float32()),
            "images": pa.array([image_cell(row.images, row.image_files) for row in rows], image_type()),
            "num_turns": pa.array([max(1, len(row.turns)) for row in rows], pa.int32()),
            "context_tokens": pa.array([len(_bytes(row.context_ids)) // 4 for row in rows], pa.int32()),
            "turns": pa.array([turn_cell(row.turns) for row in rows], turn_type()),
            "context_ids": _lists([row.context_ids for row in rows], pa.int32()),
            "data_source": pa.array([row.data_source for row in rows], pa.string()),
        }
    )


def _bytes(buffer: bytes | memoryview) -> memoryview:
    return memoryview(buffer).cast("B")


def _lists(buffers: Sequence[bytes | memoryview], kind: Any) -> "pa.ListArray":
    """Buffers of four-byte numbers as a column of lists, without a Python object per token."""
    import pyarrow as pa  # noqa: PLC0415 - see above

    offsets = [0]
    for buffer in buffers:
        offsets.append(offsets[-1] + len(_bytes(buffer)) // 4)
    values = pa.Array.from_buffers(kind, offsets[-1], [None, pa.py_buffer(b"".join(map(_bytes, buffers)))])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


# ── sampled episodes ──────────────────────────────────────────────────────────────────────────
# Episodes of a samples file, for the report and the terminal.

SHOWN_EPISODES = 4
"""Most episodes of a report."""


class SampledEpisode(Struct, frozen=True, kw_only=True):
    step: int
    group_id: int
    index: int
    prompt: str
    answer: str
    reward: float
    finish_reason: str
    turns: list[Turn]


def step_file(folder: Path, step: int) -> Path:
    """File of a step, whether it exists or not."""
    return folder / f"step_{step:06d}.parquet"


def newest_file(folder: Path) -> Path | None:
    """Samples file of the last step; None if there is none."""
    return max(folder.glob("step_*.parquet"), default=None)


def read_first_episodes(folder: Path) -> list[SampledEpisode]:
    """Read an episode of each of the first groups of the newest step. Raises `LedgerError` if its file is damaged."""
    if (path := newest_file(folder)) is None:
        return []
    seen: set[int] = set()

    def is_first(group_id: int, _index: int) -> bool:
        is_new = group_id not in seen and len(seen) < SHOWN_EPISODES
        seen.add(group_id)
        return is_new

    return read_episodes(path, is_first)


def read_episodes(path: Path, is_wanted: Callable[[int, int], bool]) -> list[SampledEpisode]:
    """
    Read the episodes of a samples file, in order; trajectories without turns are none.

    Args:
        is_wanted: Called with group id and index of each episode.

    Raises:
        LedgerError: The file is missing or damaged.
    """
    import pyarrow as pa  # noqa: PLC0415  takes a tenth of a second
    import pyarrow.parquet as pq  # noqa: PLC0415

    fields = SampledEpisode.__struct_fields__
    try:
        if "turns" not in pq.read_schema(path).names:
            return []
        rows = pq.read_table(path, columns=list(fields)).to_pylist()
        return [
            SampledEpisode(**row | {"turns": turns_of(row["turns"])})
            for row in rows
            if row["turns"] and is_wanted(row["group_id"], row["index"])
        ]
    except (pa.ArrowException, OSError, TypeError) as error:
        raise LedgerError(f"{path} cannot be read: {str(error).partition(chr(10))[0]}") from error


# ── pictured samples ──────────────────────────────────────────────────────────────────────────
# Samples with pictures from the newest samples file, one for each group, for the report.

SHOWN_PICTURES = 8
"""Most samples that are returned."""


class PicturedSample(Struct, frozen=True, kw_only=True):
    step: int
    prompt: str
    completion: str
    answer: str
    reward: float
    files: list[bytes]
    """Pictures of the prompt, in order."""


def read_pictured_samples(folder: Path) -> list[PicturedSample]:
    """Read the first samples with pictures of the newest file. Raises `LedgerError` if the file is damaged."""
    import pyarrow as pa  # noqa: PLC0415  takes a tenth of a second
    import pyarrow.parquet as pq  # noqa: PLC0415

    if (path := newest_file(folder)) is None:
        return []
    columns = [*PicturedSample.__struct_fields__[:-1], "images"]
    try:
        if "images" not in pq.read_schema(path).names:
            return []
        rows = pq.read_table(path, columns=columns).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise LedgerError(f"{path} cannot be read: {str(error).partition(chr(10))[0]}") from error
    with_files = [(row, [image["bytes"] for image in row.pop("images")]) for row in rows]
    return [PicturedSample(**row, files=files) for row, files in with_files if files and all(files)][:SHOWN_PICTURES]
