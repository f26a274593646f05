"""
Columns of a dataset that hold the prompt and its reference answer, by their names and first values.

    question, final_answer, level        ─▶ question, final_answer
    prompt, reward_model, extra_info     ─▶ prompt, reward_model.ground_truth     (verl's form)

A run file names them; commands that are given a dataset alone guess them.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.config.sections.data import Data
from asyncrl.data.table import Row, Rows, open_rows
from asyncrl.errors import DataError

PROMPTS = ("prompt", "question", "problem", "query", "instruction", "input", "messages", "conversation")
ANSWERS = (
    "answer",
    "ground_truth",
    "final_answer",
    "solution",
    "target",
    "label",
    "output",
    "response",
)
VERL = "reward_model"
"""Column of verl's rows, whose ``ground_truth`` is the answer."""
LOOKED_AT = 32
"""First rows by which columns are guessed."""
SETTING = "--set data.{}_column=NAME"


class Columns(Struct, frozen=True):
    prompt: str
    answer: str
    """Empty if the rows have verl's ``reward_model``, which needs no setting."""

    def __str__(self) -> str:
        answer = f"answer from {self.answer!r}" if self.answer else f"answer from {VERL}.ground_truth"
        return f"prompt from {self.prompt!r}, {answer}"


def guess(rows: Rows, given: Mapping[str, str], option: str = SETTING) -> Columns:
    """
    Choose the columns.

    Args:
        given: ``prompt`` and ``answer`` as the user named them; either may be missing.
        option: How the user names one, for messages; ``{}`` stands for ``prompt`` or ``answer``.

    Raises:
        DataError: A column that was named does not exist, or none looks like one.
    """
    for kind, name in given.items():
        if name not in rows.columns:
            raise DataError(_sentence(rows, f"has no column {name!r}", option.format(kind)))
    first = _first_rows(rows)
    prompt = given.get("prompt") or _named(PROMPTS, first, rows.columns, _is_prompt)
    if not prompt:
        raise DataError(_sentence(rows, "has no column that looks like a prompt", option.format("prompt")))
    has_verl = VERL in rows.columns and any(isinstance(row.get(VERL), dict) for row in first)
    answer = given.get("answer") or ("" if has_verl else _named(ANSWERS, first, rows.columns, _is_answer))
    if not answer and not has_verl:
        raise DataError(_sentence(rows, "has no column that looks like a reference answer", option.format("answer")))
    return Columns(prompt, answer)


def columns_of(rows: Rows, given: Mapping[str, str], option: str = SETTING) -> Columns:
    """Choose as `guess`, but take ``prompt`` and ``answer`` where they exist, whatever their values are."""
    usual = {name: name for name in rows.columns if name in ("prompt", "answer")}
    return guess(rows, usual | dict(given), option)


def guessed(data: Data, path: str, say: Callable[[str], None], option: str = SETTING) -> Data:
    """
    Replace the columns that ``data`` leaves at their defaults and the file lacks by guesses, and say which they are.

    Raises `DataError` as `guess`, or if the file cannot be read.
    """
    rows = open_rows(Path(path), on_disk=data.image_column)
    named = {"prompt": data.prompt_column, "answer": data.answer_column}
    found = columns_of(rows, {kind: name for kind, name in named.items() if name != kind}, option)
    now = replace(data, prompt_column=found.prompt, answer_column=found.answer or data.answer_column)
    if now != data:
        say(f"{path}: {found}")
    return now


def _first_rows(rows: Rows) -> list[Row]:
    """The first rows that can be decoded."""
    first = []
    for number in range(min(len(rows), LOOKED_AT)):
        try:
            first.append(rows[number])
        except DataError:  # it is among the bad rows, which are reported when all are read
            continue
    return first


def _sentence(rows: Rows, what: str, option: str) -> str:
    return f"dataset {rows.path} {what}: it has {', '.join(rows.columns)}; name it with {option}"


def _named(names: Sequence[str], rows: Sequence[Row], columns: Sequence[str], fits: Callable[[Any], bool]) -> str:
    """The first of the usual names, then of those that contain one, of which most values fit, or else any."""
    longer = [column for name in names for column in columns if name in column.lower()]
    usual = [column for name in names for column in columns if column.lower() == name]
    fitting = {column: sum(fits(row.get(column)) for row in rows) for column in [*usual, *longer]}
    return next((column for least in (len(rows) / 2, 0) for column in fitting if fitting[column] > least), "")


def _is_prompt(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in value)
    return isinstance(value, str) and bool(value)


def _is_answer(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)
