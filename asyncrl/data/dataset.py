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

from asyncrl.config.sections.data import Data
from asyncrl.data.images import ImageFiles, Keep, describe, keep_nothing, read_files
from asyncrl.data.row import extra_names, read_row, remarks, repeated_keys, require_columns
from asyncrl.data.table import Rows, open_rows
from asyncrl.errors import DataError
from asyncrl.foreign_text import shown
from asyncrl.messages.trajectory import Image, Prompt


class BadRow(Struct, frozen=True):
    place: str
    """File and row, for messages."""
    reason: str


class ScannedRow(Struct, frozen=True):
    file: int
    """Number of its file, from 0."""
    place: str
    """File and row, for messages."""
    found: Prompt | BadRow
    remarks: Sequence[str] = ()
    """Clauses about a prompt that is unlike what one expects; see `asyncrl.data.row.remarks`."""


class Dataset:
    """
    Rows of at least one file; raises `DataError` if a file lacks one of the columns that ``data`` names.

    Args:
        keep: Called by `scan` for each picture of each usable row.
    """

    def __init__(self, files: Sequence[Rows], data: Data, keep: Keep = keep_nothing) -> None:
        for file in files:
            is_held_out = file.path in map(Path, data.held_out_files) and file.path not in map(Path, data.train_files)
            require_columns(file, data, is_held_out=is_held_out)
        self.files = files
        self._data = data
        self._extra = extra_names(files, data)
        self._keep = keep
        self._images: dict[int, list[Image]] = {}
        """Pictures by row, for rows with pictures. `scan` reads their files once."""
        self._ends = list(accumulate(len(file) for file in files))

    @classmethod
    def open(cls, paths: Sequence[str], data: Data, keep: Keep = keep_nothing, *, setting: str = "") -> "Dataset":
        """Open the files that ``setting`` names; raises `DataError` if one cannot be read or lacks a column."""
        files = [open_rows(Path(path), setting=setting, on_disk=data.image_column) for path in paths]
        return cls(files, data, keep)

    def __len__(self) -> int:
        return self._ends[-1]

    def prompt(self, row: int) -> Prompt:
        """Read one row with the pictures that `scan` has found. Raises `DataError` if the row is unusable."""
        place = bisect_right(self._ends, row)
        number = row - (self._ends[place - 1] if place else 0)
        return read_row(self.files[place], number, self._data, self._images.get(row, ()), self._extra)[1]

    def scan(self) -> Iterator[ScannedRow]:
        """Every row in order."""
        row = 0
        for place, file in enumerate(self.files):
            files = ImageFiles(file.path, self._data.image_folders)
            for number, cell in enumerate(file.column(self._data.image_column)):
                where = file.place(number)
                try:
                    found, clauses = self._scanned(row, file, number, read_files(cell, files))
                    yield ScannedRow(place, where, found, clauses)
                except DataError as error:
                    yield ScannedRow(place, where, BadRow(where, shown(str(error).removeprefix(f"{where}: "))))
                row += 1

    def _scanned(self, row: int, file: Rows, number: int, contents: Sequence[bytes]) -> tuple[Prompt, Sequence[str]]:
        images = [describe(content) for content in contents]
        values, prompt = read_row(file, number, self._data, images, self._extra)
        for image, content in zip(images, contents, strict=True):
            self._keep(image, content)
        if images:
            self._images[row] = images
        return prompt, repeated_keys(file, number) + remarks(values, prompt, self._data)

    def by_file(self, rows: Sequence[int]) -> list[list[int]]:
        split: list[list[int]] = [[] for _ in self.files]
        for row in rows:
            split[bisect_right(self._ends, row)].append(row)
        return split


def count_reasons(bad: Sequence[BadRow]) -> dict[str, int]:
    """Count the rows with each reason, most frequent first."""
    return dict(Counter(row.reason for row in bad).most_common())
