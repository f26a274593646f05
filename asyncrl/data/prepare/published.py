"""
Published datasets as parquet, in verl's row schema.

    file ─▶ rows ─▶ problem ─▶ {data_source, prompt, ability, reward_model, extra_info} ─▶ parquet
                       └─▶ bad rows: where, and why

What a dataset's rows look like is said by one `Published` of each, in the module named for it; the rest is here.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.data.dataset import BadRow
from asyncrl.data.table import Row, Rows, open_rows
from asyncrl.errors import DataError
from asyncrl.files.atomic import replacing

SHOWN = 5
"""How many bad rows one error names."""

Chat = list[dict[str, str]]


class Problem(Struct, frozen=True, kw_only=True):
    """One row of a published dataset."""

    prompt: str | Chat
    """Without the instruction that goes with the dataset."""
    answer: str
    extra: dict[str, str | int | float | bool | None] = {}
    """For ``extra_info``."""
    image: bytes | None = None
    image_name: str = ""


class Published(Struct, frozen=True, kw_only=True):
    """A dataset as somebody publishes it."""

    data_source: str
    """As verl calls it, so that verifiers know it."""
    problem: Callable[[Row], Problem]
    """Of a row. Raises `DataError` if there is none in it."""
    instruction: str = ""
    """Behind each prompt: how the answer is to be given."""
    ability: str = "math"
    repeats: bool = False
    """The same prompts come several times; once is enough."""
    open: Callable[[Path], Rows] = open_rows


class Prepared(Struct, frozen=True, kw_only=True):
    """What became of a published dataset."""

    path: Path
    num_read: int
    num_rows: int
    """Written."""
    num_repeated: int
    bad: list[BadRow]
    """Left out."""


def prepare(
    published: Published,
    source: Path,
    out: Path,
    *,
    split: str = "",
    instruction: str | None = None,
    is_chat: bool = True,
    skip_bad: bool = False,
) -> Prepared:
    """
    Write a dataset as parquet.

    Args:
        source: As published: a file, or what else ``published`` opens.
        out: Replaced at once, or left alone if anything is wrong.
        split: For ``extra_info``; empty takes the name of ``source``.
        instruction: In place of the dataset's own; empty adds none.
        is_chat: Prompts become one message of the user. Otherwise they are plain text, for models without a chat
            template.
        skip_bad: Leave rows out that cannot be used. Otherwise they are an error.

    Raises:
        DataError: ``source`` cannot be read, or has rows that cannot be used; names the first of them.
    """
    rows = published.open(source)
    wanted = published.instruction if instruction is None else instruction
    written, bad, first = list[Row](), list[BadRow](), dict[bytes, tuple[str, str]]()
    for number in range(len(rows)):
        place = rows.place(number)
        try:
            problem = published.problem(rows[number])
            prompt = _prompt(problem.prompt, wanted, is_chat=is_chat)
            if published.repeats and _is_repeated(prompt, problem.answer, place, first):
                continue
        except DataError as error:
            bad.append(BadRow(place, str(error).removeprefix(f"{place}: ")))
        else:
            written.append(_row(published, problem, prompt, {"split": split or source.stem, "index": number}))
    if bad and (not skip_bad or not written):
        raise DataError(_refusal(bad, len(rows)))
    write(written, out)
    return Prepared(
        path=out, num_read=len(rows), num_rows=len(written), num_repeated=len(rows) - len(written) - len(bad), bad=bad
    )


def text_of(row: Row, *keys: str) -> list[str]:
    """
    Values that have to be there, and text.

    Raises:
        DataError: Names the first that is not.
    """
    for key in keys:
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise DataError(f"{key!r} is missing, or not text")
    return [row[key] for key in keys]


def write(rows: Sequence[Row], out: Path) -> None:
    """
    Rows as parquet.

    Raises:
        DataError: The place cannot be written.
    """
    import pyarrow as pa  # noqa: PLC0415 - a tenth of a second that `asyncrl --help` need not wait for
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        with replacing(out) as unfinished:
            pq.write_table(pa.Table.from_pylist(rows), unfinished, compression="zstd")
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror}") from error


def _prompt(asked: str | Chat, instruction: str, *, is_chat: bool) -> str | Chat:
    chat = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    if instruction:
        last = chat[-1]
        chat = [*chat[:-1], last | {"content": f"{last['content']} {instruction}"}]
    if is_chat:
        return chat
    if len(chat) > 1:
        raise DataError(f"a chat of {len(chat)} messages is not one text")
    return chat[0]["content"]


def _is_repeated(prompt: str | Chat, answer: str, place: str, first: dict[bytes, tuple[str, str]]) -> bool:
    """Was it asked before? A prompt that has two answers cannot be used."""
    known, where = first.setdefault(msgspec.json.encode(prompt), (answer, place))
    if known != answer:
        raise DataError(f"its answer is {answer!r:.40}, but {known!r:.40} in {where}, which asks the same")
    return where != place


def _row(published: Published, problem: Problem, prompt: str | Chat, about: dict[str, Any]) -> Row:
    image = {"images": [{"bytes": problem.image, "path": problem.image_name}]} if problem.image else {}
    return {
        "data_source": published.data_source,
        "prompt": prompt,
        **image,
        "ability": published.ability,
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": about | problem.extra,
    }


def _refusal(bad: Sequence[BadRow], num_rows: int) -> str:
    named = "; ".join(f"{row.place}: {row.reason}" for row in bad[:SHOWN])
    more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    return f"{len(bad)} of {num_rows} rows cannot be used, and nothing was written: {named}{more}"
