"""
What a row must be to become a prompt.

    {"prompt": "2 + 3 = ?", "answer": "5"}                                                     the plain form
    {"prompt": [{"role": "user", "content": "2 + 3 = ?"}], "answer": 5, "data_source": "sums"}
    {"prompt": [...], "reward_model": {"ground_truth": "5"}, "extra_info": {"index": 7}}       as verl writes it

A chat may also be JSON text of the same form. A row that does not fit is refused by name: nothing is guessed or cut.
"""

import math
from typing import Any

import msgspec

from asyncrl.config.sections import Data
from asyncrl.data.table import Row, Rows, require_column
from asyncrl.errors import DataError
from asyncrl.messages import Prompt

MEDIA = ("images", "videos", "audios")
"""Columns of verl's multi-modal rows. Asking such a prompt without its picture would train on nonsense."""

Scalar = str | int | float | bool | None


def require_columns(rows: Rows, data: Data) -> None:
    """
    Refuse a dataset that lacks a column every row needs.

    The answer may also be verl's ``reward_model.ground_truth``, and the data source may be absent under its usual name.

    Raises:
        DataError: Names the column, what is there instead, and the closest of it.
    """
    require_column(rows, data.prompt_column)
    if "reward_model" not in rows.columns:
        require_column(rows, data.answer_column)
    if data.data_source_column != "data_source":
        require_column(rows, data.data_source_column)


def prompt_of(rows: Rows, row: int, data: Data) -> Prompt:
    """
    Row ``row`` as a prompt.

    Raises:
        DataError: Names the row and what is wrong with it.
    """
    values = rows[row]
    try:
        return as_prompt(values, data)
    except DataError as error:
        raise DataError(f"{rows.place(row)}: {error}") from error


def left_behind(extra: Any) -> list[str]:
    """Keys of ``extra_info`` whose values do not travel: nested ones, which every lease would carry."""
    if extra is None:
        return []
    if not isinstance(extra, dict):
        return ["(all of it)"]
    return [key for key, value in extra.items() if not _is_scalar(value)]


def as_prompt(values: Row, data: Data) -> Prompt:
    """
    What a row holds, as a prompt.

    Raises:
        DataError: What is wrong with it.
    """
    for column in MEDIA:
        if values.get(column):
            raise DataError(f"it has {column}, and only text can be asked")
    asked = values.get(data.prompt_column)
    if not asked:
        raise DataError(f"{data.prompt_column!r} is {'null or missing' if asked is None else 'empty'}")
    if isinstance(asked, str):
        asked = _chat_in_json(asked) or asked
    return Prompt(
        text=asked if isinstance(asked, str) else "",
        chat=[] if isinstance(asked, str) else _chat(asked, data.prompt_column),
        answer=_answer(values, data.answer_column),
        data_source=_text(values.get(data.data_source_column), data.data_source_column),
        extra=_scalars(values.get("extra_info")),
    )


def _chat_in_json(text: str) -> list[dict[str, Any]]:
    """The messages that ``text`` is the JSON of; none if it is anything else, which is then text to be asked."""
    if not text.lstrip().startswith("[") or '"role"' not in text:
        return []
    try:
        turns = msgspec.json.decode(text, type=list[dict[str, Any]])
    except msgspec.MsgspecError:
        return []
    return turns if all({"role", "content"} <= turn.keys() for turn in turns) else []


def _chat(asked: Any, column: str) -> list[dict[str, str]]:
    if not isinstance(asked, list):
        raise DataError(f"{column!r} is neither text nor a list of chat messages, but {_kind(asked)}")
    return [_turn(turn, f"{column}[{number}]") for number, turn in enumerate(asked)]


def _turn(turn: Any, where: str) -> dict[str, str]:
    if not isinstance(turn, dict):
        raise DataError(f"{where} is not a chat message {{role, content}}, but {_kind(turn)}")
    for key in ("role", "content"):
        if not isinstance(turn.get(key), str):
            raise DataError(f"{where}.{key} must be text, got {_kind(turn.get(key))}")
    # Parquet gives every message of a column the same keys, and null where one had none.
    present = {key: value for key, value in turn.items() if value is not None}
    for key, value in present.items():
        if not isinstance(value, str):
            raise DataError(f"{where}.{key} must be text, got {_kind(value)}")
    return present


def _answer(values: Row, column: str) -> str:
    answer = values.get(column)
    if answer is None and isinstance(values.get("reward_model"), dict):
        column, answer = "reward_model.ground_truth", values["reward_model"].get("ground_truth")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise DataError(f"{column!r} must be text or a number, got {_kind(answer)}")
    if isinstance(answer, float):
        return _number(answer, column)
    return str(answer)


def _number(answer: float, column: str) -> str:
    """A whole number as verifiers and people write it: a column of integers with one null in it is read as floats."""
    if not math.isfinite(answer):
        raise DataError(f"{column!r} is {answer}, not a number")
    return str(int(answer)) if answer.is_integer() else repr(answer)


def _text(value: Any, column: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{column!r} must be text, got {_kind(value)}")
    return value


def _scalars(extra: Any) -> dict[str, Scalar]:
    """What a verifier may want to know besides; see `left_behind`."""
    return {key: value for key, value in extra.items() if _is_scalar(value)} if isinstance(extra, dict) else {}


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _kind(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {value!r:.40}"
