"""
Conversion of dataset rows to prompts. Accepted forms:

    {"prompt": "2 + 3 = ?", "answer": "5"}                                                     the plain form
    {"prompt": [{"role": "user", "content": "2 + 3 = ?"}], "answer": 5, "data_source": "sums"}
    {"prompt": [...], "reward_model": {"ground_truth": "5"}, "extra_info": {"index": 7}}       as verl writes it
    {"prompt": "<image> How many?", "answer": "3", "images": [...]}                   one mark for each picture
    {"prompt": [...], "answer": "5", "tools": [{"type": "function", "function": {...}}]}   shown by the chat template
    {"task": "2 + 3 = ?", "solution": "5", "level": 2}         columns by other names; further ones reach the reward

A chat may also be JSON text of the same form; with ``data.as_chat`` any other text is a chat of one message. A row of
another form is refused: nothing is guessed or truncated.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from asyncrl.config.sections.data import Data
from asyncrl.data.table import VERL, Row, Rows, keys_of, refuse_many, require_column, value_of
from asyncrl.data.tools import read_tools
from asyncrl.errors import DataError
from asyncrl.files.foreign import parse_json
from asyncrl.foreign_text import shown
from asyncrl.messages.trajectory import IMAGE_MARK, Image, Prompt

MEDIA = ("videos", "audios")
"""Columns of verl's multi-modal rows that are not supported; a row that has one is refused."""

INFO = "extra_info"
"""Column of verl's rows, an object whose values reach the reward and the environment."""

MAX_BYTES = 1 << 20
"""Largest prompt with its answer and scalars, encoded: each lease and each request to grade carries one."""

MAX_COLUMN_CHARS = 1 << 16
"""Longest text of a further column that travels: some columns, such as pictures in base64, no reward reads."""

_encoder = msgspec.msgpack.Encoder()


def require_columns(rows: Rows, data: Data, *, is_held_out: bool = False) -> None:
    """
    Raise `DataError` if a column is missing that every row needs; verl's ``reward_model`` may replace the answer.

    ``is_held_out`` is true for a file beside training data that has the columns.
    """
    needed = ["prompt_column"]
    needed += ["answer_column"] if VERL not in rows.columns else []
    needed += ["data_source_column"] if data.data_source_column != "data_source" else []
    needed += ["image_column"] if data.image_column not in ("images", "") else []
    needed += ["tools_column"] if data.tools_column not in ("tools", "") else []
    for name in needed:
        require_column(rows, getattr(data, name), f"data.{name}", is_held_out=is_held_out)


def extra_names(files: Sequence[Rows], data: Data) -> list[str]:
    """Names that `Prompt.extra` has in every row of a dataset, None where a row has none: those of all rows."""
    names = [name for file in files for name in further_columns(file.columns, data)]
    names += [key for file in files for key in keys_of(file, INFO)]
    refuse_many(found := list(dict.fromkeys(names)), f"{INFO} of dataset {files[0].path}")
    return found


def read_row(
    rows: Rows, row: int, data: Data, images: Sequence[Image] = (), extra_names: Sequence[str] = ()
) -> tuple[Row, Prompt]:
    """
    Read row ``row``, and as a prompt; raises `DataError` with its place and the reason if it is unusable.

    ``extra_names`` are those of the row's dataset.
    """
    values = rows[row]
    try:
        prompt = to_prompt(values, data, images, extra_names)
        marks = num_marks(prompt)
        if data.image_column and marks != len(prompt.images):
            none = "" if images else f', or set data.image_column = "" if no row has pictures and {IMAGE_MARK} is text'
            raise DataError(
                f"it has {len(prompt.images)} pictures, but {marks} marks {IMAGE_MARK} in its prompt; write the "
                f"mark once for each picture{none}"
            )
        _refuse_large(prompt)
        return values, prompt
    except DataError as error:
        raise DataError(f"{rows.place(row)}: {error}") from error


def _refuse_large(prompt: Prompt) -> None:
    """Raise `DataError` for a prompt above `MAX_BYTES`, with its largest field."""
    try:
        size = len(_encoder.encode(prompt))
    except OverflowError as error:
        raise DataError(f"it cannot be sent: {error}; extra_info has such a value") from error
    if size <= MAX_BYTES:
        return
    fields = {name: len(_encoder.encode(getattr(prompt, name))) for name in prompt.__struct_fields__}
    largest = max(fields, key=fields.__getitem__)
    raise DataError(
        f"it has {size:,} bytes ({fields[largest]:,} of them in {largest!r}), more than the {MAX_BYTES:,} that may "
        f"travel with every lease; shorten it"
    )


_OBJECT = re.compile(r"""(?:array\(\s*)?[\[({\s]*\{\s*(['"])[^'"]*\1\s*:""")
"""Beginning of an object, or of a list of objects, as JSON and Python write it."""


def remarks(values: Row, prompt: Prompt, data: Data) -> list[str]:
    """Clauses about a row that can be used, but may have been made for another purpose; each follows ``rows``."""
    column, cell = shown(data.prompt_column), value_of(values, data.prompt_column)
    is_text = isinstance(cell, str) and prompt.chat in ([], chat_of(cell))
    found = []
    if is_text and _OBJECT.match(cell.lstrip()[:200]) and cell.rstrip().endswith(("]", "}", ")")):
        found.append(
            f"have the text of an object of JSON or Python in {column!r}, which the policy reads as it stands: write "
            f"the text of the prompt, or a chat as a list of messages {{role, content}}"
        )
    if prompt.chat and prompt.chat[-1]["role"] == "assistant":
        found.append(
            f"end with a message of the assistant in {column!r}, which the policy reads, and if it is the answer, "
            f"copies: end each chat with the message that it is to answer"
        )
    return found + [
        f"have {shown(name)!r}, which reaches neither the reward nor the environment, because it is no text of at most "
        f"{MAX_COLUMN_CHARS:,} characters, number of 64 bits or bool: write it as one, or remove it"
        for name in dropped_keys(values, data)
    ]


def repeated_keys(rows: Rows, row: int) -> list[str]:
    """Clauses, as of `remarks`, about the keys that the row has more than once."""
    return [
        f"have the key {shown(key)!r} more than once in an object, of which the last counts: write it once"
        for key in rows.repeated(row)
    ]


def dropped_keys(values: Row, data: Data) -> list[str]:
    """Further columns and keys of objects that the prompt lacks, because every lease would carry them."""
    named = {data.prompt_column, data.answer_column, data.data_source_column, data.image_column, data.tools_column}
    dropped = []
    for name in further_columns(values, data):
        keys = values[name] if isinstance(values[name], dict) else {}
        if any(f"{name}.{key}" in named for key in keys):
            dropped += [f"{name}.{key}" for key in keys if f"{name}.{key}" not in named and keys[key] is not None]
        elif not _is_small(values[name]):
            dropped.append(name)
    info = values.get(INFO)
    if not isinstance(info, dict):
        return dropped if info is None else [*dropped, INFO]
    names = {f"{INFO}.{key}": value for key, value in info.items()}
    return dropped + [name for name, value in names.items() if not _is_scalar(value) and name not in named]


def _extra(values: Row, data: Data, names: Sequence[str]) -> dict[str, Any]:
    """Further columns of a row and its ``extra_info``, which wins, as the reward and the environment get them."""
    columns = {name: values[name] for name in further_columns(values, data)}
    info = values.get(INFO)
    given = info if isinstance(info, dict) else {}
    small = {name: value for name, value in columns.items() if _is_small(value)}
    # A null may stand for a key that the row lacks, and says nothing against the column.
    known = small | {key: value for key, value in given.items() if _is_scalar(value) and value is not None}
    lost = columns.keys() - small.keys() | {key for key, value in given.items() if not _is_scalar(value)}
    there = dict.fromkeys((*names, *columns, *given))
    return {name: known.get(name) for name in there if name in known or name not in lost}


def further_columns(names: Iterable[str], data: Data) -> list[str]:
    """Columns that have no name of ours. The answer's own name is one: a reward may know it by that alone."""
    ours = {data.prompt_column, data.data_source_column, data.image_column, data.tools_column, INFO, VERL, *MEDIA}
    if data.answer_column == "answer":
        ours.add("answer")
    return [name for name in names if name not in ours]


def to_prompt(values: Row, data: Data, images: Sequence[Image] = (), extra_names: Sequence[str] = ()) -> Prompt:
    """
    Convert a row with these pictures to a prompt; raises `DataError` with the reason if it is unusable.

    ``extra_names`` are those of the row's dataset, if it belongs to one.
    """
    for column in MEDIA:
        if values.get(column):
            raise DataError(f"it has {column}, but prompts must be text and pictures")
    prompt = value_of(values, data.prompt_column)
    if not prompt:
        raise DataError(f"{data.prompt_column!r} is {'null or missing' if prompt is None else 'empty'}")
    if isinstance(prompt, str):
        prompt = _chat_in_json(prompt) or (chat_of(prompt) if data.as_chat else prompt)
    tools = read_tools(value_of(values, data.tools_column), data.tools_column) if data.tools_column else ""
    if tools and isinstance(prompt, str):
        raise DataError(
            f"it has {data.tools_column!r}, and plain text has no place for tools: write the prompt as a chat, or set "
            f"data.as_chat = true"
        )
    return Prompt(
        text=prompt if isinstance(prompt, str) else "",
        chat=[] if isinstance(prompt, str) else _chat(prompt, data.prompt_column),
        answer=_answer(values, data.answer_column),
        data_source=_text(value_of(values, data.data_source_column), data.data_source_column),
        extra=_extra(values, data, extra_names),
        images=list(images),
        tools=tools,
    )


def chat_of(text: str) -> list[dict[str, str]]:
    """A chat of one message, by the user."""
    return [{"role": "user", "content": text}]


def num_marks(prompt: Prompt) -> int:
    """Number of marks of pictures in the text or the chat of a prompt."""
    return sum(text.count(IMAGE_MARK) for text in (prompt.text, *(turn["content"] for turn in prompt.chat)))


def _chat_in_json(text: str) -> list[dict[str, Any]]:
    """Decode a chat in JSON; empty if ``text`` is anything else, and so a plain prompt."""
    if not text.lstrip().startswith("[") or '"role"' not in text:
        return []
    try:
        turns = parse_json(text, list[dict[str, Any]], "it")
    except DataError:
        return []
    return turns if all({"role", "content"} <= turn.keys() for turn in turns) else []


def _chat(prompt: Any, column: str) -> list[dict[str, str]]:
    if not isinstance(prompt, list):
        raise DataError(f"{column!r} is neither text nor a list of chat messages, but {_kind(prompt)}")
    return [_turn(turn, f"{column}[{number}]") for number, turn in enumerate(prompt)]


def _turn(turn: Any, where: str) -> dict[str, str]:
    if not isinstance(turn, dict):
        raise DataError(f"{where} is not a chat message {{role, content}}, but {_kind(turn)}")
    for key in ("role", "content"):
        if not isinstance(turn.get(key), str):
            raise DataError(f"{where}.{key} must be text, got {_kind(turn.get(key))}")
    # Parquet gives every message of a column the same keys, with null for those it did not have.
    present = {key: value for key, value in turn.items() if value is not None}
    for key, value in present.items():
        if not isinstance(value, str):
            raise DataError(f"{where}.{key} must be text, got {_kind(value)}")
    return present


def _answer(values: Row, column: str) -> str:
    answer = value_of(values, column)
    if answer is None and isinstance(values.get(VERL), dict):
        column, answer = f"{VERL}.ground_truth", values[VERL].get("ground_truth")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise DataError(f"{column!r} must be text or a number, got {_kind(answer)}")
    if not isinstance(answer, float):
        return str(answer)
    if not math.isfinite(answer):
        raise DataError(f"{column!r} is {answer}, not a number")
    # Whole numbers without decimals: a column of integers with a null in it is read as floats.
    return str(int(answer)) if answer.is_integer() else repr(answer)


def _text(value: Any, column: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{column!r} must be text, got {_kind(value)}")
    return value


_SCALARS = (str, int, float, bool, type(None))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, _SCALARS)


def _is_small(value: Any) -> bool:
    """True if each lease can carry a column's value: no bytes, list or dict, no long text, and no number of 65 bits."""
    if isinstance(value, str):
        return len(value) <= MAX_COLUMN_CHARS
    return _is_scalar(value) and not (isinstance(value, int) and not -(1 << 63) <= value < 1 << 63)


def _kind(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {value!r:.40}"
