"""Datasets of the user's own, with any column names."""

from collections.abc import Callable
from pathlib import Path

from asyncrl.config.sections.data import Data
from asyncrl.data.columns import Columns
from asyncrl.data.prepare.published import Problem, PublishedDataset
from asyncrl.data.row import to_prompt
from asyncrl.data.table import Row, Rows, open_rows
from asyncrl.errors import DataError


def own_rows(
    data_source: str, found: Columns, *, repeats: bool = False, open_file: Callable[[Path], Rows] = open_rows
) -> PublishedDataset:
    """Describe a dataset of any column names, with prompts (text or chat) and answers (text or numbers)."""
    columns = Data(train="", prompt_column=found.prompt, answer_column=found.answer or "answer")

    def problem(row: Row) -> Problem:
        if row.get(columns.image_column):
            raise DataError("it has pictures, which are not copied: name the file itself as data.train")
        prompt = to_prompt(row, columns)
        return Problem(prompt=prompt.text or prompt.chat, answer=prompt.answer, extra=prompt.extra)

    return PublishedDataset(data_source=data_source, problem=problem, ability="", repeats=repeats, open=open_file)
