"""Rows of one's own, whatever their columns are called, as a dataset to train on."""

from asyncrl.config.sections import Data
from asyncrl.data.prepare.published import Problem, Published
from asyncrl.data.row import as_prompt
from asyncrl.data.table import Row


def own_rows(data_source: str, prompt_key: str, answer_key: str, *, repeats: bool = False) -> Published:
    """
    A dataset with a question and an answer in each row.

    Args:
        data_source: Decides which verifier judges the answers.
        prompt_key: Column of texts or chats.
        answer_key: Column of texts or numbers.
        repeats: A prompt that comes several times is kept once.
    """
    columns = Data(train="", prompt_column=prompt_key, answer_column=answer_key)

    def problem(row: Row) -> Problem:
        found = as_prompt(row, columns)
        return Problem(prompt=found.text or found.chat, answer=found.answer, extra=found.extra)

    return Published(data_source=data_source, problem=problem, ability="", repeats=repeats)
