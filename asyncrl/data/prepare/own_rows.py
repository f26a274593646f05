"""Datasets of the user's own, with any column names."""

import csv
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from asyncrl.config.sections.data import Data
from asyncrl.data.prepare.published import PublishedDataset, PublishedProblem
from asyncrl.data.row import remarks, to_prompt
from asyncrl.data.table import Columns, Row, Rows, open_rows
from asyncrl.errors import DataError
from asyncrl.similar_path import did_you_mean


def own_rows(
    data_source: str, found: Columns, *, repeats: bool = False, open_file: Callable[[Path], Rows] = open_rows
) -> PublishedDataset:
    """Describe a dataset of any column names, with prompts (text or chat) and answers (text or numbers)."""
    columns = Data(train="", prompt_column=found.prompt, answer_column=found.answer or "answer", as_chat=True)

    def problem(row: Row) -> PublishedProblem:
        if row.get(columns.image_column):
            raise DataError("it has pictures, which are not copied: name the file itself as data.train")
        prompt = to_prompt(row, columns)
        return PublishedProblem(
            prompt=prompt.chat,
            answer=prompt.answer,
            extra=prompt.extra,
            tools=prompt.tools,
            remarks=remarks(row, prompt, columns),
        )

    return PublishedDataset(data_source=data_source, problem=problem, ability="", repeats=repeats, open=open_file)


# ── csv rows ──────────────────────────────────────────────────────────────────────────────────
# Rows of a CSV file. Its first line has the names of the columns; every value is the text that is written there.
#
#     question;label      ─▶ {"question": "2 + 3?", "label": "05"}
#     2 + 3?;05

SEPARATORS = (",", ";", "\t")
LONGEST = 1 << 24
"""Characters of the longest value."""


class CsvRows(Rows):
    def __init__(self, path: Path, columns: list[str], lines: list[tuple[int, list[str]]]) -> None:
        self.path = path
        self.columns = columns
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, row: int, /) -> Row:
        values = self._lines[row][1]
        if len(values) != len(self.columns):
            raise DataError(f"{self.place(row)}: it has {len(values)} values for {len(self.columns)} columns")
        return dict(zip(self.columns, values, strict=True))

    def place(self, row: int, /) -> str:
        return f"{self.path} line {self._lines[row][0]}"


def open_csv(path: Path) -> Rows:
    """Open a CSV file, whose values are separated by what is most frequent in its first line; raises `DataError`."""
    csv.field_size_limit(LONGEST)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(SEPARATORS, key=first.count), strict=True)
            lines = [(reader.line_num, values) for values in reader if values]
    except FileNotFoundError as error:
        raise DataError(f"no such dataset: {path}{did_you_mean(path)}") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path} as CSV: {error}; write it in UTF-8, with quotes around texts") from error
    if len(lines) < 2:
        raise DataError(f"dataset {path} is empty: it has no rows below the names of its columns")
    (_, columns), *rows = lines
    if twice := [name for name, count in Counter(columns).items() if count > 1]:
        raise DataError(f"dataset {path} has several columns {', '.join(map(repr, twice))}: give each its own name")
    return CsvRows(path, columns, rows)
