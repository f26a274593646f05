"""
Conversion of published datasets to parquet in verl's row schema.

    file ─▶ rows ─▶ problem ─▶ {data_source, prompt, ability, reward_model, extra_info} ─▶ parquet
                       └─▶ bad rows, each with place and reason

Each dataset has a module with a `PublishedDataset`, which describes its rows; everything else is here.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.data.dataset import BadRow
from asyncrl.data.table import Row, Rows, open_rows
from asyncrl.errors import DataError
from asyncrl.files.output import output

SHOWN = 5
"""Bad rows listed in an error."""
ROWS_WITH_IMAGES = 128
"""Rows of a row group in a file with pictures, few because readers load a whole group at once."""

Chat = list[dict[str, str]]


class Problem(Struct, frozen=True, kw_only=True):
    prompt: str | Chat
    """Without the dataset's instruction."""
    answer: str
    extra: dict[str, str | int | float | bool | None] = {}
    image: bytes | None = None
    image_name: str = ""


class PublishedDataset(Struct, frozen=True, kw_only=True):
    """Description of a dataset in its published form."""

    data_source: str
    """verl's name of the dataset, which selects the verifier."""
    problem: Callable[[Row], Problem]
    """Converts a row; raises `DataError` if the row is unusable."""
    instruction: str = ""
    """Appended to each prompt: the required form of the answer."""
    ability: str = "math"
    repeats: bool = False
    """Prompts are repeated; each is kept once."""
    open: Callable[[Path], Rows] = open_rows


class PrepareResult(Struct, frozen=True, kw_only=True):
    path: Path
    num_read: int
    num_rows: int
    num_repeated: int
    bad: list[BadRow]


def prepare(
    dataset: PublishedDataset,
    source: Path,
    out: Path,
    *,
    split: str = "",
    instruction: str | None = None,
    is_chat: bool = True,
    skip_bad: bool = False,
) -> PrepareResult:
    """
    Convert a dataset to parquet.

    Args:
        source: Path that ``dataset.open`` accepts.
        out: Replaced atomically; untouched if there is an error.
        split: For ``extra_info``; empty takes the name of ``source``.
        instruction: Replaces the dataset's own; empty adds none.
        is_chat: Write prompts as one user message; otherwise as plain text, for models without a chat template.
        skip_bad: Leave out bad rows; otherwise they are an error.

    Raises:
        DataError: ``source`` cannot be read, or has bad rows.
    """
    rows = dataset.open(source)
    added = dataset.instruction if instruction is None else instruction
    written, bad, first = list[Row](), list[BadRow](), dict[bytes, tuple[str, str]]()
    for number in range(len(rows)):
        place = rows.place(number)
        try:
            problem = dataset.problem(rows[number])
            prompt = _prompt(problem.prompt, added, is_chat=is_chat)
            if dataset.repeats and _is_repeated(prompt, problem.answer, place, first):
                continue
        except DataError as error:
            bad.append(BadRow(place, str(error).removeprefix(f"{place}: ")))
        else:
            written.append(_row(dataset, problem, prompt, {"split": split or source.stem, "index": number}))
    if bad and (not skip_bad or not written):
        raise DataError(_refusal(bad, len(rows)))
    write(written, out)
    return PrepareResult(
        path=out, num_read=len(rows), num_rows=len(written), num_repeated=len(rows) - len(written) - len(bad), bad=bad
    )


def written_row(dataset: PublishedDataset, problem: Problem, *, split: str, number: int) -> Row:
    """The row of a problem: a chat of one message, with the dataset's instruction."""
    prompt = _prompt(problem.prompt, dataset.instruction, is_chat=True)
    return _row(dataset, problem, prompt, {"split": split, "index": number})


def text_of(row: Row, *keys: str) -> list[str]:
    """Values of columns; raises `DataError` for one that is missing, empty or not text."""
    for key in keys:
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise DataError(f"{key!r} is missing, or not text")
    return [row[key] for key in keys]


def write(rows: Sequence[Row], out: Path) -> None:
    """Write rows as parquet; raises `ConfigError` if ``out`` cannot be written."""
    import pyarrow as pa  # noqa: PLC0415 - takes a tenth of a second
    import pyarrow.parquet as pq  # noqa: PLC0415

    group_rows = ROWS_WITH_IMAGES if any("images" in row for row in rows) else None
    with output(out, durable=True) as unfinished:
        pq.write_table(pa.Table.from_pylist(rows), unfinished, compression="zstd", row_group_size=group_rows)


def _prompt(prompt: str | Chat, instruction: str, *, is_chat: bool) -> str | Chat:
    chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if instruction:
        last = chat[-1]
        chat = [*chat[:-1], last | {"content": f"{last['content']} {instruction}"}]
    if is_chat:
        return chat
    if len(chat) > 1:
        raise DataError(f"a chat of {len(chat)} messages cannot be plain text")
    return chat[0]["content"]


def _is_repeated(prompt: str | Chat, answer: str, place: str, first: dict[bytes, tuple[str, str]]) -> bool:
    """Return True for a repetition; raise `DataError` if the prompt has had another answer."""
    known, first_place = first.setdefault(msgspec.json.encode(prompt), (answer, place))
    if known != answer:
        raise DataError(f"its answer is {answer!r:.40}, but {known!r:.40} in {first_place}, which has the same prompt")
    return first_place != place


def _row(dataset: PublishedDataset, problem: Problem, prompt: str | Chat, info: dict[str, Any]) -> Row:
    image = {"images": [{"bytes": problem.image, "path": problem.image_name}]} if problem.image else {}
    return {
        "data_source": dataset.data_source,
        "prompt": prompt,
        **image,
        "ability": dataset.ability,
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": info | problem.extra,
    }


def _refusal(bad: Sequence[BadRow], num_rows: int) -> str:
    named = "; ".join(f"{row.place}: {row.reason}" for row in bad[:SHOWN])
    more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    return f"{len(bad)} of {num_rows} rows cannot be used, and nothing was written: {named}{more}"
