"""
Samples of one file for people: which file, and which few of its rows.

    samples/step_000041.parquet, held_out/version_000040.parquet ─ read ─▶ rows ─ chosen ─▶ one of each group first
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from msgspec import Struct

from asyncrl.errors import ConfigError, LedgerError
from asyncrl.observe.sampled_episodes import newest_file
from asyncrl.observe.samples import HELD_OUT

Order = Literal["spread", "best", "worst"]
"""``spread``: as in the file, one of each group first; ``best`` and ``worst``: by reward."""


class SampleText(Struct, frozen=True, kw_only=True):
    """One trained trajectory, or one held-out completion."""

    step: int
    """Number of the step; for a held-out completion, the steps trained before it."""
    group_id: int
    index: int
    prompt: str
    completion: str
    answer: str
    reward: float
    finish_reason: str
    num_tokens: int
    staleness: int
    oldest_version: int
    num_turns: int = 1


def trained_file(folder: Path, step: int | None) -> Path:
    """File of a step, by default the newest; raises `ConfigError` if there is none."""
    if (newest := newest_file(folder)) is None:
        raise ConfigError(f"there are no samples in {folder}: no step is done yet, or broker.samples is false")
    if step is None:
        return newest
    path = folder / f"step_{step:06d}.parquet"
    if not path.is_file():
        raise ConfigError(f"there are no samples of step {step} in {folder}; the newest are of step {_number(newest)}")
    return path


def held_out_file(folder: Path, step: int | None) -> Path:
    """File of the evaluation after ``step`` steps, by default the newest; raises `ConfigError` if there is none."""
    files = sorted((folder / HELD_OUT).glob("version_*.parquet"))
    if not files:
        raise ConfigError(
            f"there are no held-out samples in {folder / HELD_OUT}: no evaluation is done, or evaluation.answers is 0"
        )
    if step is None:
        return files[-1]
    steps = {_first_step(path): path for path in files}
    if step not in steps:
        raise ConfigError(
            f"there was no evaluation after {step} steps; there are held-out samples after "
            f"{', '.join(str(known) for known in steps)} steps"
        )
    return steps[step]


def read_texts(path: Path) -> list[SampleText]:
    """Every row of a samples file. Raises `LedgerError` if it is damaged."""
    import pyarrow.parquet as pq  # noqa: PLC0415  takes a tenth of a second

    with _readable(path):
        known = pq.read_schema(path).names
        columns = [name for name in SampleText.__struct_fields__ if name in known or name != "num_turns"]
        rows = pq.read_table(path, columns=columns).to_pylist()
        return [SampleText(**row) for row in rows]


def chosen(rows: Sequence[SampleText], number: int, order: Order) -> list[SampleText]:
    """At most ``number`` rows; of equal ones, one of each group comes before a second one of any."""
    seen: Counter[int] = Counter()
    ranked = []
    for row in rows:
        ranked.append((seen[row.group_id], row))
        seen[row.group_id] += 1
    sign = {"spread": 0, "best": -1, "worst": 1}[order]
    ranked.sort(key=lambda item: (sign * item[1].reward, item[0]))
    return [row for _, row in ranked[:number]]


def _number(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def _first_step(path: Path) -> int:
    """Step of the first row, without its texts."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    with _readable(path):
        steps = pq.read_table(path, columns=["step"])["step"]
        return steps[0].as_py() if len(steps) else -1


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise `LedgerError` if the file turns out to be damaged."""
    import pyarrow as pa  # noqa: PLC0415

    try:
        yield
    except (pa.ArrowException, OSError, TypeError) as error:
        raise LedgerError(f"{path} cannot be read: {str(error).partition(chr(10))[0]}") from error
