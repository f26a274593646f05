"""
Rows of a dataset file, by number.

    train.parquet ──┐
                    ├──▶ open_rows ──▶ Rows: len(rows), rows[i], columns
    train.jsonl  ───┘

Rows are plain dicts. The format is recognized by the first bytes. A file stays in memory, because prompts are small;
a column of pictures may stay on disk.

No row speaks for another: the columns are those of all rows, and a row that lacks one has None there, as in parquet.
A column may also be a key of another one, ``problem.text``; a column of that very name goes first.
"""

import codecs
import difflib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.config.sections.data import Data
from asyncrl.errors import DataError
from asyncrl.files.foreign import NoSuchFile, opened, parse_json
from asyncrl.foreign_text import shown
from asyncrl.similar_path import did_you_mean

if TYPE_CHECKING:  # importing pyarrow takes a tenth of a second
    import pyarrow as pa
    import pyarrow.parquet as pq

PARQUET_MAGIC = b"PAR1"
"""The first and last four bytes of every parquet file."""
BYTE_ORDER_MARK = codecs.BOM_UTF8
"""Bytes that some editors write before the text of a file in UTF-8."""
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
STREAMED_ROWS = 16
"""Rows of a column that are in memory at a time while it is read from disk."""
MAX_LINE = 32 << 20
"""Longest line of JSONL in bytes; a prompt has at most one."""
EXPANDED_BYTES, EXPANDED_TIMES = 1 << 28, 100
"""Most bytes of the values of a parquet file, and that many more for each of its own."""
MAX_ROWS = 20_000_000
PART_ROWS = 256
"""Rows of a parquet file that are decoded at a time."""
MAX_COLUMNS = 1000
"""Most columns of a file: every row has each of them, so more are keys that are data."""

Row = dict[str, Any]


class Rows(Protocol):
    path: Path
    columns: list[str]
    """Names of the columns of all rows, in the order in which they come first."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Row:
        """Decode row ``row``, counted from 0, with None for columns that it lacks; raises `DataError` if that fails."""

    def place(self, row: int, /) -> str:
        """Name row ``row`` for messages: file and row or line."""

    def column(self, name: str, /, missing: Any = None) -> Iterator[Any]:
        """
        Values of one column, as `value_of` finds them, in the order of rows; of one on disk, read from there.

        A row without it, or that cannot be decoded, has ``missing``. Raises `DataError` if the file is damaged.
        """
        is_there = bool(_holders(self, name))
        for row in range(len(self)):
            try:
                yield value_of(self[row], name, missing) if is_there else missing
            except DataError:  # raised again by whoever reads the row
                yield missing

    def repeated(self, row: int, /) -> Sequence[str]:
        """Keys that an object in row ``row`` has more than once; the last one counts."""
        return ()


_MISSING = object()


def value_of(values: Mapping[str, Any], name: str, missing: Any = None) -> Any:
    """Value of a column, or of a key of one as ``problem.text``; a column of that very name goes first."""
    if name in values or "." not in name:
        return values.get(name, missing)
    for place in (place for place, letter in enumerate(name) if letter == "."):
        inner = values.get(name[:place])
        if isinstance(inner, dict) and (found := value_of(inner, name[place + 1 :], _MISSING)) is not _MISSING:
            return found
    return missing


def has_column(rows: Rows, name: str) -> bool:
    """True if the file has a column of this name, or a row has a key of one as `value_of` finds it."""
    return name in rows.columns or any(value is not _MISSING for value in rows.column(name, _MISSING))


def _holders(rows: Rows, name: str) -> list[str]:
    """Columns in which `value_of` looks for ``name``."""
    names = [name, *(name[:place] for place, letter in enumerate(name) if letter == ".")]
    found = [column for column in names if column in rows.columns]
    return found[:1] if name in found else found


def keys_of(rows: Rows, column: str) -> list[str]:
    """Keys of all objects in a column, in the order in which they come first."""
    return list(dict.fromkeys(key for cell in rows.column(column) if isinstance(cell, dict) for key in cell))


def refuse_many(names: Collection[str], what: str) -> None:
    """Raise `DataError` if ``what`` has more than `MAX_COLUMNS` names."""
    if len(names) > MAX_COLUMNS:
        raise DataError(
            f"{what} has {len(names):,} names over all rows, expected at most {MAX_COLUMNS:,}; write an object whose "
            f"keys are data as JSON text"
        )


def open_rows(path: Path, *, setting: str = "", on_disk: str = "") -> Rows:
    """
    Open a parquet or JSONL file; raises `DataError` if it is missing, of another format, damaged or empty.

    Args:
        setting: Key that names the file, for the message about a missing one; empty if none does.
        on_disk: Column that rows of a parquet file lack, because it is too large for the memory; see `Rows.column`.
    """
    try:
        with opened(path, f"dataset {path}") as file:
            start = file.read(4096)
            rows = _read_parquet(path, on_disk) if start.startswith(PARQUET_MAGIC) else _read_jsonl(path, start)
    except NoSuchFile as error:
        raise no_dataset(path, setting) from error
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
    if has_column(rows, column):
        return
    if is_held_out:
        raise DataError(
            f"held-out dataset {rows.path} has no column {column!r}, which the training data has ({setting}): it has "
            f"{_there(rows, column)}; rename one of them to {column!r} in that file{_unread(rows)}"
        )
    raise _no_column(rows, column, setting)


def _no_column(rows: Rows, column: str, setting: str) -> DataError:
    known = [*rows.columns, *_nested(rows, column)]
    close = difflib.get_close_matches(column, known, n=1)
    name = f"did you mean {close[0]!r}? Name it" if close else "name it"
    return DataError(
        f"dataset {rows.path} has no column {column!r}: it has {_there(rows, column)}; {name} with {setting}"
        f"{_unread(rows)}"
    )


def _nested(rows: Rows, name: str) -> list[str]:
    """Keys of the columns in which ``name`` was looked for, as they are named."""
    heads = [] if name in rows.columns else _holders(rows, name)
    return [f"{head}.{key}" for head in heads for key in keys_of(rows, head)]


def _there(rows: Rows, name: str = "") -> str:
    """Columns that there are, and the keys of the one in which ``name`` was looked for."""
    return ", ".join(map(shown, [*rows.columns, *_nested(rows, name)]))


def _unread(rows: Rows) -> str:
    """Clause about the first row that cannot be decoded, whose columns nobody knows; empty without one."""
    for row in range(len(rows)):
        try:
            rows[row]
        except DataError as error:
            return f". Besides, {error}"
    return ""


class ParquetRows(Rows):
    def __init__(self, path: Path, table: "pa.Table", columns: list[str]) -> None:
        self.path = path
        self.columns = columns
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, row: int, /) -> Row:
        with _decoded(f"{self.place(row)} is damaged"):
            decoded: list[Row] = self._table.slice(row, 1).to_pylist()
            return decoded[0]

    def place(self, row: int, /) -> str:
        return f"{self.path} row {row}"

    def column(self, name: str, /, missing: Any = None) -> Iterator[Any]:
        import pyarrow.parquet as pq  # noqa: PLC0415 - see above

        holders = _holders(self, name)
        if not holders:
            yield from repeat(missing, len(self))
            return
        with (
            _decoded(f"column {name!r} of dataset {self.path} is damaged"),
            pq.ParquetFile(self.path, buffer_size=1 << 20, pre_buffer=False) as file,
        ):
            for rows in file.iter_batches(STREAMED_ROWS, columns=holders):
                yield from (value_of(values, name, missing) for values in rows.to_pylist())


class JsonRows(Rows):
    """
    `Rows` of a JSONL file. Lines are decoded on demand; blank lines are skipped.

    Raises `DataError` if no line is an object, or the objects have too many keys.
    """

    def __init__(self, path: Path, lines: list[tuple[int, bytes]]) -> None:
        self.path = path
        self._lines = lines
        self._repeated: dict[int, list[str]] = {}
        """Keys that come twice in an object of the row."""
        self._blank: Row = {}
        """A row without any value."""
        twice: list[str] = []

        def noting(pairs: list[tuple[str, Any]]) -> Row:
            values = dict(pairs)
            if len(values) < len(pairs):
                twice.extend(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            return values

        decode = json.JSONDecoder(object_pairs_hook=noting).decode
        for row, (_, line) in enumerate(lines):
            with suppress(DataError):  # raised again by whoever reads the row
                found: Any = parse_json(line, Row, "it", decode=lambda line: decode(line.decode()))
                self._blank |= dict.fromkeys(found) if isinstance(found, dict) else {}
            if twice:
                self._repeated[row] = list(twice)
                twice.clear()
        self.columns = list(self._blank)
        if lines and not self.columns:
            self[0]
        refuse_many(self.columns, f"dataset {path}")

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, row: int, /) -> Row:
        try:
            return self._blank | parse_json(self._lines[row][1], Row, "it")
        except DataError as error:
            raise DataError(f"{self.place(row)}: {error}") from error

    def place(self, row: int, /) -> str:
        return f"{self.path} line {self._lines[row][0]}"

    def repeated(self, row: int, /) -> Sequence[str]:
        return self._repeated.get(row, ())


def _read_parquet(path: Path, on_disk: str) -> ParquetRows:
    import pyarrow.parquet as pq  # noqa: PLC0415 - see above

    with _decoded(f"dataset {path} starts like parquet, but is damaged"):
        names: list[str] = pq.read_schema(path).names
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            what = f"{len(twice)} column {'name' if len(twice) == 1 else 'names'} twice, {', '.join(map(repr, twice))}"
            raise DataError(f"dataset {path} has {what}: write it again with different names")
        with pq.ParquetFile(path) as file:
            in_memory = [name for name in names if name != on_disk]
            return ParquetRows(path, _read_table(path, file, in_memory), names)


@contextmanager
def _decoded(problem: str) -> Iterator[None]:
    """Raise `DataError` with the problem for whatever pyarrow raises about the bytes of a file."""
    import pyarrow as pa  # noqa: PLC0415 - see above

    try:
        yield
    except (pa.ArrowException, OSError, RecursionError, UnicodeError) as error:
        raise DataError(f"{problem}: {_first_line(error)}") from error


def _read_table(path: Path, file: "pq.ParquetFile", columns: list[str]) -> "pa.Table":
    """Columns of a file, part by part: one of some kilobytes may hold terabytes of one repeated value."""
    import pyarrow as pa  # noqa: PLC0415 - see above

    limit = EXPANDED_BYTES + EXPANDED_TIMES * path.stat().st_size
    groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    if file.metadata.num_rows > MAX_ROWS or sum(group.total_byte_size for group in groups) > limit:
        raise _too_large(path, limit)
    batches, size = [], 0
    for batch in file.iter_batches(PART_ROWS, columns=columns):
        batches.append(batch)
        size += batch.nbytes
        if size > limit:
            raise _too_large(path, limit)
    schema = file.schema_arrow
    return pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in columns], schema.metadata))


def _too_large(path: Path, limit: int) -> DataError:
    return DataError(
        f"dataset {path} has more than {MAX_ROWS:,} rows, or {limit:,} bytes of values, {EXPANDED_TIMES} times its "
        f"size: write it again as several files, or with fewer repeated values"
    )


def _read_jsonl(path: Path, start: bytes) -> JsonRows:
    if start.startswith(UTF_16):
        raise DataError(f"dataset {path} is UTF-16: save it as UTF-8")
    first = start.removeprefix(BYTE_ORDER_MARK).lstrip()[:1]
    if first == b"[" and path.suffix != ".toml":  # whose first section is in such brackets, too
        raise DataError(f"dataset {path} is one JSON array: write one object per line (JSONL), or parquet")
    if first not in (b"{", b"") and path.suffix in (".csv", ".tsv"):
        converted = path.with_suffix(".parquet")
        raise DataError(f"dataset {path} is CSV: convert it with `asyncrl data prepare csv {path} -o {converted}`")
    if first not in (b"{", b""):
        raise DataError(f"dataset {path} is neither parquet nor JSONL: it starts with {start[:12]!r}")
    return JsonRows(path, [(number, line) for number, line in enumerate(_lines(path), start=1) if line.strip()])


def _lines(path: Path) -> Iterator[bytes]:
    with opened(path) as file:
        if file.peek(3).startswith(BYTE_ORDER_MARK):
            file.seek(len(BYTE_ORDER_MARK))
        while line := file.readline(MAX_LINE + 1):
            if len(line) > MAX_LINE:
                raise DataError(f"dataset {path} has a line of more than {MAX_LINE:,} bytes; shorten it")
            yield line.removesuffix(b"\n")


def _first_line(error: Exception) -> str:
    return shown(str(error).partition("\n")[0])  # bytes of the file may be in it


# ── columns ───────────────────────────────────────────────────────────────────────────────────
# Columns of a dataset that hold the prompt and its reference answer, by their names and the values of all rows.
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
    for kind, name in given.items():
        if not has_column(rows, name):
            raise _no_column(rows, name, option.format(kind))
    prompt = given.get("prompt") or _named(PROMPTS, rows, _is_prompt) or _chats(rows)
    has_verl = any(isinstance(cell, dict) for cell in rows.column(VERL))
    answer = given.get("answer") or ("" if has_verl else _named(ANSWERS, rows, _is_answer))
    missing = {} if prompt else {"prompt": "a prompt"}
    missing |= {} if answer or has_verl else {"answer": "a reference answer"}
    if missing:
        what = f"has no column that looks like {' or '.join(missing.values())}"
        name = " ".join(map(option.format, missing))
        raise DataError(f"dataset {rows.path} {what}: it has {_there(rows)}; name it with {name}{_unread(rows)}")
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


def _named(names: Sequence[str], rows: Rows, fits: Callable[[Any], bool]) -> str:
    """The first of the usual names, then of those that contain one, of which most values fit, or else any."""
    columns = sorted(rows.columns)
    longer = [column for name in names for column in columns if name in column.lower()]
    usual = [column for name in names for column in columns if column.lower() == name]
    fitting: dict[str, int] = {}
    for column in dict.fromkeys([*usual, *longer]):
        fitting[column] = sum(map(fits, rows.column(column)))
        if fitting[column] > len(rows) / 2:
            return column
    return next((column for column, count in fitting.items() if count), "")


def _chats(rows: Rows) -> str:
    """The first column of which most values are chats, whatever its name; empty without one."""
    return next((name for name in sorted(rows.columns) if sum(map(_is_chat, rows.column(name))) > len(rows) / 2), "")


def _is_prompt(value: Any) -> bool:
    return _is_chat(value) or (isinstance(value, str) and bool(value))


def _is_chat(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in value)


def _is_answer(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)
