"""Episodes of a samples file, for the report and the terminal."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from asyncrl.errors import LedgerError
from asyncrl.evaluation.turn_column import turns_of
from asyncrl.messages.trajectory import Turn

SHOWN = 4
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


def newest_file(folder: Path) -> Path | None:
    """Samples file of the last step; None if there is none."""
    return max(folder.glob("step_*.parquet"), default=None)


def read_first_episodes(folder: Path) -> list[SampledEpisode]:
    """Read an episode of each of the first groups of the newest step. Raises `LedgerError` if its file is damaged."""
    if (path := newest_file(folder)) is None:
        return []
    seen: set[int] = set()

    def is_first(group_id: int, _index: int) -> bool:
        is_new = group_id not in seen and len(seen) < SHOWN
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
