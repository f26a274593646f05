"""
Columns of a dataset that hold the prompt and its reference answer, by their names and first values.

    question, final_answer, level        ─▶ question, final_answer
    prompt, reward_model, extra_info     ─▶ prompt, reward_model.ground_truth     (verl's form)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from asyncrl.data.table import Row
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


class Columns(Struct, frozen=True):
    prompt: str
    answer: str
    """Empty if the rows have verl's ``reward_model``, which needs no setting."""


def guess(rows: Sequence[Row], columns: Sequence[str], given: Mapping[str, str], path: str) -> Columns:
    """
    Choose the columns.

    Args:
        rows: The first rows.
        columns: All columns.
        given: ``prompt`` and ``answer`` as the user named them; either may be missing.
        path: File, for messages.

    Raises:
        DataError: A column that was named does not exist, or none looks like one.
    """
    for name in given.values():
        if name not in columns:
            raise DataError(f"{path} has no column {name!r}: it has {', '.join(columns)}")
    prompt = given.get("prompt") or _first(PROMPTS, rows, columns, _is_prompt)
    if not prompt:
        raise DataError(
            f"no column of {path} looks like a prompt: it has {', '.join(columns)}; name it with --prompt-column"
        )
    has_verl = VERL in columns and isinstance(rows[0].get(VERL), dict)
    answer = given.get("answer") or ("" if has_verl else _first(ANSWERS, rows, columns, _is_answer))
    if not answer and not has_verl:
        raise DataError(
            f"no column of {path} looks like a reference answer: it has {', '.join(columns)}; name it with "
            f"--answer-column"
        )
    return Columns(prompt, answer)


def _first(names: Sequence[str], rows: Sequence[Row], columns: Sequence[str], fits: Callable[[Any], bool]) -> str:
    """The first of the usual names, or else of the columns whose names contain one, whose values fit."""
    longer = [column for name in names for column in columns if name in column.lower()]
    usual = [column for name in names for column in columns if column.lower() == name]
    return next((column for column in [*usual, *longer] if all(fits(row.get(column)) for row in rows)), "")


def _is_prompt(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in value)
    return isinstance(value, str) and bool(value)


def _is_answer(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)
