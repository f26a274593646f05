"""Datasets of the user's own, with any column names."""

from asyncrl.config.sections.data import Data
from asyncrl.data.prepare.published import Problem, PublishedDataset
from asyncrl.data.row import to_prompt
from asyncrl.data.table import Row
from asyncrl.errors import DataError


def own_rows(data_source: str, prompt_key: str, answer_key: str, *, repeats: bool = False) -> PublishedDataset:
    """Describe a dataset of any column names, with prompts (text or chat) and answers (text or numbers)."""
    columns = Data(train="", prompt_column=prompt_key, answer_column=answer_key)

    def problem(row: Row) -> Problem:
        if row.get(columns.image_column):
            raise DataError("it has pictures, which are not copied: name the file itself as data.train")
        prompt = to_prompt(row, columns)
        return Problem(prompt=prompt.text or prompt.chat, answer=prompt.answer, extra=prompt.extra)

    return PublishedDataset(data_source=data_source, problem=problem, ability="", repeats=repeats)
