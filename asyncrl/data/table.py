"""
Rows of a dataset file, by number.

    train.parquet ──┐
                    ├──▶ open_rows ──▶ Rows: len(rows), rows[i], columns
    train.jsonl  ───┘

Rows are plain dicts. The format is recognized by the first bytes. A file stays in memory, because prompts are small;
a column of pictures may stay on disk.
"""

import difflib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from asyncrl.config.sections.data import Data
from asyncrl.errors import DataError
from asyncrl.similar_path import did_you_mean

if TYPE_CHECKING:  # importing pyarrow takes a tenth of a second
    import pyarrow as pa

PARQUET_MAGIC = b"PAR1"
"""The first and last four bytes of every parquet file."""
STREAMED_ROWS = 16
"""Rows of a column that are in memory at a time while it is read from disk."""

Row = dict[str, Any]


class Rows(Protocol):
    @property
    def path(self) -> Path: ...

    @property
    def columns(self) -> list[str]:
        """Column names of the file (parquet) or of its first line (JSONL)."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Row:
        """Decode row ``row``, counted from 0; raises `DataError` if that fails."""

    def place(self, row: int, /) -> str:
        """Name row ``row`` for messages: file and row or line."""

    def column(self, name: str, /) -> Iterator[Any]:
        """
        Values of one column in the order of rows, read from disk if the column is not in memory.

        A row without it, or that cannot be decoded, has None. Raises `DataError` if the file is damaged.
        """


def open_rows(path: Path, *, setting: str = "", on_disk: str = "") -> Rows:
    """
    Open a parquet or JSONL file; raises `DataError` if it is missing, of another format, damaged or empty.

    Args:
        setting: Key that names the file, for the message about a missing one; empty if none does.
        on_disk: Column that rows of a parquet file lack, because it is too large for the memory; see `Rows.column`.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except FileNotFoundError as error:
        raise no_dataset(path, setting) from error
    except OSError as error:
        raise DataError(f"cannot read dataset {path}: {error.strerror}") from error
    rows = _read_parquet(path, on_disk) if start.startswith(PARQUET_MAGIC) else _read_jsonl(path, start)
    if not len(rows):
        raise DataError(f"dataset {path} is empty: it has no rows")
    return rows


def no_dataset(path: Path, setting: str = "") -> DataError:
    """Error for a file that is missing; ``setting`` is the key that names it, empty if none does."""
    return DataError(f"no such dataset: {path}{f' ({setting})' if setting else ''}{did_you_mean(path)}")


def require_column(rows: Rows, column: str, setting: str, *, is_held_out: bool = False) -> None:
    """
    Raise `DataError`, with the columns there are, if the dataset lacks ``column``, which ``setting`` names.

    Args:
        is_held_out: The training data has the column, so that the file has to be changed, not the setting.
    """
    if column in rows.columns:
        return
    there = ", ".join(rows.columns)
    if is_held_out:
        raise DataError(
            f"held-out dataset {rows.path} has no column {column!r}, which the training data has ({setting}): it has "
            f"{there}; rename one of them to {column!r} in that file"
        )
    close = difflib.get_close_matches(column, rows.columns, n=1)
    name = f"did you mean {close[0]!r}? Name it" if close else "name it"
    raise DataError(f"dataset {rows.path} has no column {column!r}: it has {there}; {name} with {setting}")


class ParquetRows:
    def __init__(self, path: Path, table: "pa.Table", columns: list[str]) -> None:
        self.path = path
        self.columns = columns
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, row: int, /) -> Row:
        decoded: list[Row] = self._table.slice(row, 1).to_pylist()
        return decoded[0]

    def place(self, row: int, /) -> str:
        return f"{self.path} row {row}"

    def column(self, name: str, /) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - see above
        import pyarrow.parquet as pq  # noqa: PLC0415

        try:
            with pq.ParquetFile(self.path, buffer_size=1 << 20, pre_buffer=False) as file:
                for rows in file.iter_batches(STREAMED_ROWS, columns=[name]):
                    yield from rows.column(0).to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"column {name!r} of dataset {self.path} is damaged: {_first_line(error)}") from error


class JsonRows:
    """`Rows` of a JSONL file. Lines are decoded on demand; blank lines are skipped."""

    def __init__(self, path: Path, lines: list[tuple[int, bytes]]) -> None:
        self.path = path
        self._lines = lines
        self.columns: list[str] = list(self[0]) if lines else []

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, row: int, /) -> Row:
        try:
            return msgspec.json.decode(self._lines[row][1], type=Row)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DataError(f"{self.place(row)}: not a JSON object: {error}") from error

    def place(self, row: int, /) -> str:
        return f"{self.path} line {self._lines[row][0]}"

    def column(self, name: str, /) -> Iterator[Any]:
        for row in range(len(self)):
            try:
                yield self[row].get(name)
            except DataError:  # raised again by whoever reads the row
                yield None


def _read_parquet(path: Path, on_disk: str) -> ParquetRows:
    import pyarrow as pa  # noqa: PLC0415 - see above
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        names: list[str] = pq.read_schema(path).names
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            what = f"{len(twice)} column {'name' if len(twice) == 1 else 'names'} twice, {', '.join(map(repr, twice))}"
            raise DataError(f"dataset {path} has {what}: write it again with different names")
        in_memory = [name for name in names if name != on_disk] if on_disk in names else None
        return ParquetRows(path, pq.read_table(path, columns=in_memory), names)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"dataset {path} starts like parquet, but is damaged: {_first_line(error)}") from error


def _read_jsonl(path: Path, start: bytes) -> JsonRows:
    first = start.lstrip()[:1]
    if first == b"[" and path.suffix != ".toml":  # whose first section is in such brackets, too
        raise DataError(f"dataset {path} is one JSON array: write one object per line (JSONL), or parquet")
    if first not in (b"{", b"") and path.suffix in (".csv", ".tsv"):
        converted = path.with_suffix(".parquet")
        raise DataError(f"dataset {path} is CSV: convert it with `asyncrl data prepare csv {path} -o {converted}`")
    if first not in (b"{", b""):
        raise DataError(f"dataset {path} is neither parquet nor JSONL: it starts with {start[:12]!r}")
    lines = enumerate(path.read_bytes().split(b"\n"), start=1)
    return JsonRows(path, [(number, line) for number, line in lines if line.strip()])


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# ── columns ───────────────────────────────────────────────────────────────────────────────────
# Columns of a dataset that hold the prompt and its reference answer, by their names and first values.
#
#     question, final_answer, level        ─▶ question, final_answer
#     prompt, reward_model, extra_info     ─▶ prompt, reward_model.ground_truth     (verl's form)
#     task (chats), solution, level        ─▶ task, solution                        (a chat is told by its values alone)
#
# A run file names them; commands that are given a dataset alone guess them.

PROMPTS = ("prompt", "question", "problem", "query", "instruction", "input", "messages", "conversation")
ANSWERS = (
    "answer",
    "ground_truth",
    "final_answer",
    "solution",
    "gold",
    "target",
    "label",
    "output",
    "response",
)
VERL = "reward_model"
"""Column of verl's rows, whose ``ground_truth`` is the answer."""
LOOKED_AT = 32
"""First rows by which columns are guessed."""
SETTING, OPTION = "--set data.{}_column=NAME", "--{}-column NAME"
"""Texts by which a command without options for columns, or with, is told one; ``{}`` is ``prompt`` or ``answer``."""


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
    if lacking := {kind: name for kind, name in given.items() if name not in rows.columns}:
        what = f"has no column {' and none '.join(map(repr, lacking.values()))}"
        raise DataError(_sentence(rows, what, " ".join(map(option.format, lacking))))
    first = _first_rows(rows)
    prompt = given.get("prompt") or _named(PROMPTS, first, rows.columns, _is_prompt) or _chats(first, rows.columns)
    has_verl = VERL in rows.columns and any(isinstance(row.get(VERL), dict) for row in first)
    answer = given.get("answer") or ("" if has_verl else _named(ANSWERS, first, rows.columns, _is_answer))
    missing = {} if prompt else {"prompt": "a prompt"}
    missing |= {} if answer or has_verl else {"answer": "a reference answer"}
    if missing:
        what = f"has no column that looks like {' or '.join(missing.values())}"
        raise DataError(_sentence(rows, what, " ".join(map(option.format, missing))))
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


def _chats(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """The first column of which most values are chats, whatever its name; empty without one."""
    return next((name for name in columns if sum(_is_chat(row.get(name)) for row in rows) > len(rows) / 2), "")


def _is_prompt(value: Any) -> bool:
    return _is_chat(value) or (isinstance(value, str) and bool(value))


def _is_chat(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in value)


def _is_answer(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)
