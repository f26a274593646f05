"""
One or several files as one dataset: rows are numbered through, and read as prompts.

    a.parquet   rows 0 1 2 ──▶ 0 1 2
    b.jsonl     rows 0 1   ──▶ 3 4          the number is what a ledger keeps, so files may only be added at the end
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from msgspec import Struct

from asyncrl.config.sections import Data
from asyncrl.data.row import prompt_of, require_columns
from asyncrl.data.table import Rows, open_rows
from asyncrl.errors import DataError
from asyncrl.messages import Prompt


class BadRow(Struct, frozen=True):
    """A row that cannot be used."""

    place: str
    """Where a person finds it."""
    reason: str


class Dataset:
    """
    The rows of some files.

    Args:
        files: At least one.
        data: Names the columns.

    Raises:
        DataError: A file lacks a column.
    """

    def __init__(self, files: Sequence[Rows], data: Data) -> None:
        for file in files:
            require_columns(file, data)
        self._files = files
        self._data = data
        self._ends = list(accumulate(len(file) for file in files))

    @classmethod
    def open(cls, paths: Sequence[str], data: Data) -> "Dataset":
        """That of these files. Raises `DataError` if one cannot be read."""
        return cls([open_rows(Path(path)) for path in paths], data)

    def __len__(self) -> int:
        return self._ends[-1]

    def prompt(self, row: int) -> Prompt:
        """
        Row ``row``.

        Raises:
            DataError: It cannot be used; names it.
        """
        file, number = self._find(row)
        return prompt_of(file, number, self._data)

    def look(self) -> Iterator[Prompt | BadRow]:
        """Every row, in order."""
        for file in self._files:
            for number in range(len(file)):
                try:
                    yield prompt_of(file, number, self._data)
                except DataError as error:
                    place = file.place(number)
                    yield BadRow(place, str(error).removeprefix(f"{place}: "))

    def by_file(self, rows: Sequence[int]) -> list[list[int]]:
        """Some rows, apart by their file."""
        apart: list[list[int]] = [[] for _ in self._files]
        for row in rows:
            apart[bisect_right(self._ends, row)].append(row)
        return apart

    def _find(self, row: int) -> tuple[Rows, int]:
        file = bisect_right(self._ends, row)
        return self._files[file], row - (self._ends[file - 1] if file else 0)

    def __repr__(self) -> str:
        return f"<Dataset {', '.join(str(file.path) for file in self._files)}: {len(self)} rows>"


def by_reason(bad: Sequence[BadRow]) -> dict[str, int]:
    """How many rows each reason concerns, the most frequent first."""
    return dict(Counter(row.reason for row in bad).most_common())
