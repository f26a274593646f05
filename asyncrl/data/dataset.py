"""
One or several files as one dataset of prompts, with rows numbered across files.

    a.parquet   rows 0 1 2 ──▶ 0 1 2
    b.jsonl     rows 0 1   ──▶ 3 4          ledgers store these numbers, so files may only be added at the end
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from msgspec import Struct

from asyncrl.config.sections import Data
from asyncrl.data.row import read_prompt, require_columns
from asyncrl.data.table import Rows, open_rows
from asyncrl.errors import DataError
from asyncrl.messages import Prompt


class BadRow(Struct, frozen=True):
    place: str
    """File and row, for messages."""
    reason: str


class Dataset:
    """Rows of at least one file; raises `DataError` if a file lacks one of the columns that ``data`` names."""

    def __init__(self, files: Sequence[Rows], data: Data) -> None:
        for file in files:
            require_columns(file, data)
        self._files = files
        self._data = data
        self._ends = list(accumulate(len(file) for file in files))

    @classmethod
    def open(cls, paths: Sequence[str], data: Data) -> "Dataset":
        """Open the files; raises `DataError` if one cannot be read or lacks a column."""
        return cls([open_rows(Path(path)) for path in paths], data)

    def __len__(self) -> int:
        return self._ends[-1]

    def prompt(self, row: int) -> Prompt:
        """Read one row; raises `DataError` if it is unusable."""
        file, number = self._find(row)
        return read_prompt(file, number, self._data)

    @property
    def num_files(self) -> int:
        return len(self._files)

    def scan(self) -> Iterator[tuple[int, Prompt | BadRow]]:
        """Every row in order, with the number of its file, from 0."""
        for place, file in enumerate(self._files):
            for number in range(len(file)):
                try:
                    yield place, read_prompt(file, number, self._data)
                except DataError as error:
                    where = file.place(number)
                    yield place, BadRow(where, str(error).removeprefix(f"{where}: "))

    def by_file(self, rows: Sequence[int]) -> list[list[int]]:
        split: list[list[int]] = [[] for _ in self._files]
        for row in rows:
            split[bisect_right(self._ends, row)].append(row)
        return split

    def _find(self, row: int) -> tuple[Rows, int]:
        file = bisect_right(self._ends, row)
        return self._files[file], row - (self._ends[file - 1] if file else 0)


def count_reasons(bad: Sequence[BadRow]) -> dict[str, int]:
    """Count the rows with each reason, most frequent first."""
    return dict(Counter(row.reason for row in bad).most_common())
