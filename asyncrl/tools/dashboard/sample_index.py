"""
An index of every sample of a run by its numbers, in memory: about 100 bytes a sample, so a million fit and are filtered
in milliseconds. Texts stay in their files.

    samples/step_000041.parquet ─ a few columns ─▶ Block of arrays ─┐
    samples/held_out/...                                            ├─▶ columns ─ filter, sort ─▶ rows
                                                                    ┘
Files are read the newest first, some at a time: whoever asks gets what is there, and how much is missing. What a page
shows of the newest steps needs an index of `NEWEST_STEPS` alone, which does not grow with the run.
"""

import heapq
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from asyncrl.records.samples import HELD_OUT
from asyncrl.tools.dashboard.query import Query

if TYPE_CHECKING:  # importing pyarrow takes a tenth of a second
    import pyarrow as pa

BUDGET_S = 0.2
"""Seconds that one call reads files for."""
NUMBERS: dict[str, Any] = {
    "step": np.int32,
    "group_id": np.int64,
    "index": np.int32,
    "reward": np.float32,
    "num_tokens": np.int32,
    "staleness": np.int32,
    "oldest_version": np.int32,
    "num_turns": np.int32,
}
"""Columns that are copied, and as what. A file may lack some: 0 there, and 1 turn."""
WORDS = ("finish_reason", "node", "data_source")
"""Columns that are stored as places in a list of the words seen."""
SPLITS = ("train", "held_out")
NEWEST_STEPS = 50
"""Newest steps whose samples a histogram counts."""
CUT = "length"
"""Finish reason of a truncated completion."""

Numbers = NDArray[Any]


class SampleFile(Struct, frozen=True):
    path: Path
    split: int
    """Place in `SPLITS`."""
    size: int
    changed_ns: int


class SampleBlock(Struct, frozen=True):
    """Columns of one file."""

    file: SampleFile
    columns: dict[str, Numbers]

    @property
    def num_rows(self) -> int:
        return len(self.columns["step"])


class SampleIndex:
    """
    The samples below one folder. Not safe for several threads at once.

    Args:
        clock: Gives seconds.
        newest: Leave out all but the samples of so many newest steps; None leaves out none.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic, *, newest: int | None = None) -> None:
        self.words: dict[str, list[str]] = {name: [] for name in WORDS}
        self.files: list[SampleFile] = []
        """Files by their number in the column ``file``."""
        self.problems: dict[str, str] = {}
        """Reasons why files could not be read, by file name."""
        self._folder = folder
        self._clock = clock
        self._newest = newest
        self._blocks: dict[Path, SampleBlock] = {}
        self._waiting: list[SampleFile] = []
        self._listed: tuple[int, ...] | None = None
        self._places: dict[str, dict[str, int]] = {name: {} for name in WORDS}
        self._joined: dict[str, Numbers] | None = None

    @property
    def num_files(self) -> int:
        return len(self._blocks) + len(self._waiting)

    @property
    def num_waiting(self) -> int:
        """Files that are not indexed yet."""
        return len(self._waiting)

    def advance(self, budget_s: float = BUDGET_S) -> None:
        """Notice new and changed files, and index files for about ``budget_s`` seconds; at least one if any waits."""
        deadline = self._clock() + budget_s
        self._list()
        while self._waiting:
            file = self._waiting.pop()
            self._joined = None
            try:
                self._blocks[file.path] = SampleBlock(file, self._read(file))
                self.problems.pop(file.path.name, None)
            except Exception as error:  # noqa: BLE001  any damage of a file; the others are shown all the same
                self._blocks.pop(file.path, None)
                self.problems[file.path.name] = str(error).partition("\n")[0][:200]
            if self._clock() > deadline:
                break

    @property
    def columns(self) -> dict[str, Numbers]:
        """
        Every column of `NUMBERS` and `WORDS`, ``split``, ``file`` and ``row``, where a sample is, and ``number``.

        That is the step as people count: from 1, and steps done before a held-out completion.
        """
        if self._joined is None:
            blocks = list(self._blocks.values())
            self.files = [block.file for block in blocks]
            names = [*NUMBERS, *WORDS]
            joined = {name: _joined(blocks, name) for name in names}
            sizes = [block.num_rows for block in blocks]
            joined["file"] = np.repeat(np.arange(len(blocks), dtype=np.int32), sizes)
            joined["split"] = np.repeat(np.array([file.split for file in self.files], np.int8), sizes)
            joined["row"] = np.concatenate(
                [np.zeros(0, np.int32), *(np.arange(size, dtype=np.int32) for size in sizes)]
            )
            joined["number"] = joined["step"] + (joined["split"] == SPLITS.index("train")).astype(np.int32)
            self._joined = joined
        return self._joined

    def code(self, column: str, word: str) -> int:
        """Number that stands for a word of a column; -1 if no sample has it."""
        return self._places[column].get(word, -1)

    def newest_version(self) -> dict[str, int]:
        """Newest version of each node's samples, each counted by its oldest token."""
        columns, nodes = self.columns, self.words["node"]
        found = np.full(len(nodes), -1, np.int64)
        np.maximum.at(found, columns["node"], columns["oldest_version"])
        return {node: int(version) for node, version in zip(nodes, found, strict=True) if version >= 0}

    def _list(self) -> None:
        """Look for files, if a folder has changed since the last time."""
        folders = [self._folder, self._folder / HELD_OUT]
        changed = tuple(folder.stat().st_mtime_ns if folder.is_dir() else 0 for folder in folders)
        if changed == self._listed:
            return
        self._listed = changed
        found = {file.path: file for split, folder in enumerate(folders) for file in self._files(folder, split)}
        for path in [path for path in self._blocks if path not in found]:
            del self._blocks[path]
            self._joined = None
        names = {path.name for path in found}
        self.problems = {name: problem for name, problem in self.problems.items() if name in names}
        known = {path: block.file for path, block in self._blocks.items()}
        waiting = [file for path, file in found.items() if known.get(path) != file]
        self._waiting = sorted(waiting, key=lambda file: (-file.split, file.path.name))  # the last is read first

    def _files(self, folder: Path, split: int) -> Iterator[SampleFile]:
        for name in self._names(folder, split):
            path = folder / name
            with suppress(OSError):  # replaced in this moment
                state = path.stat()
                yield SampleFile(path, split, state.st_size, state.st_mtime_ns)

    def _names(self, folder: Path, split: int) -> list[str]:
        if not folder.is_dir():
            return []
        with os.scandir(folder) as entries:  # of which a long run has many: no more than the newest are held
            names = (entry.name for entry in entries if entry.name.endswith(".parquet"))
            return list(names) if self._newest is None else heapq.nlargest(0 if split else self._newest, names)

    def _read(self, file: SampleFile) -> dict[str, Numbers]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(file.path) as parquet:
            has = set(parquet.schema_arrow.names)
            table = parquet.read(columns=[n for n in (*NUMBERS, *WORDS) if n in has], use_threads=False)
        size = table.num_rows
        columns: dict[str, Numbers] = {}
        for name, kind in NUMBERS.items():
            default = np.full(size, name == "num_turns", kind)
            columns[name] = np.asarray(table[name].to_numpy()).astype(kind) if name in has else default
        for name in WORDS:
            columns[name] = self._codes(name, table[name] if name in has else None, size)
        return columns

    def _codes(self, name: str, column: "pa.ChunkedArray | None", size: int) -> Numbers:
        places, words = self._places[name], self.words[name]

        def place(word: str | None) -> int:
            word = word or ""
            if word not in places:
                places[word] = len(words)
                words.append(word)
            return places[word]

        if column is None:
            return np.full(size, place(""), np.int32)
        encoded = column.combine_chunks().dictionary_encode()
        unset = [None] if encoded.null_count else []  # nulls take the last place
        by_code = np.array([place(word) for word in [*encoded.dictionary.to_pylist(), *unset]], np.int32)
        if not len(by_code):
            return np.zeros(size, np.int32)
        codes: Numbers = by_code[encoded.indices.fill_null(len(by_code) - 1).to_numpy(zero_copy_only=False)]
        return codes


def _joined(blocks: Sequence[SampleBlock], name: str) -> Numbers:
    empty = np.zeros(0, NUMBERS.get(name, np.int32))
    return np.concatenate([empty, *(block.columns[name] for block in blocks)])


# ── sample query ──────────────────────────────────────────────────────────────────────────────
# Which samples are wanted, in which order, and the page of them: from numbers in memory alone.

RANGES = {
    "step": "number",
    "reward": "reward",
    "length": "num_tokens",
    "staleness": "staleness",
    "turns": "num_turns",
    "group": "group_id",
}
"""Field of a query to column: ``step_min`` and ``step_max``, and the order ``step``."""
ANY = "any"
MAX_PAGE = 200
MAX_OFFSET = 100_000_000

Mask = NDArray[np.bool_]


class SampleQuery(Struct, frozen=True, kw_only=True):
    ranges: dict[str, tuple[float | None, float | None]]
    """Column to lowest and highest value, both included; None is no bound."""
    words: dict[str, str] = {}
    """Column to the word it must be."""
    split: str = ANY
    truncated: str = ANY
    """``yes``, ``no`` or any."""
    sort: str = "number"
    """Column."""
    descending: bool = True
    offset: int = 0
    limit: int = 50

    @classmethod
    def read(cls, query: Query) -> "SampleQuery":
        """The query of a request; raises `Refused`."""
        return cls(
            ranges={
                column: (query.number(f"{field}_min"), query.number(f"{field}_max")) for field, column in RANGES.items()
            },
            words={name: word for name in ("node", "data_source") if (word := query.text(name))},
            split=query.choice("split", (ANY, *SPLITS)),
            truncated=query.choice("truncated", (ANY, "yes", "no")),
            sort=RANGES[query.choice("sort", tuple(RANGES))],
            descending=query.choice("order", ("descending", "ascending")) == "descending",
            offset=query.count("offset", 0, most=MAX_OFFSET),
            limit=query.count("limit", 50, most=MAX_PAGE),
        )


class SamplePage(Struct, frozen=True, kw_only=True):
    total: int
    """Samples that match."""
    indexed: int
    """Samples that were looked at."""
    files: int
    files_waiting: int
    rows: list[dict[str, Any]]
    nodes: list[str]
    data_sources: list[str]
    problems: dict[str, str]


def page(index: SampleIndex, query: SampleQuery) -> SamplePage:
    """The wanted page of an index, in the wanted order; ties are ordered by step, group and index."""
    columns = index.columns
    matching = np.flatnonzero(matches(index, query))
    ordered = _ordered(columns, matching, query)[query.offset : query.offset + query.limit]
    return SamplePage(
        total=len(matching),
        indexed=len(columns["step"]),
        files=index.num_files,
        files_waiting=index.num_waiting,
        rows=[_row(index, int(place)) for place in ordered],
        nodes=sorted(index.words["node"]),
        data_sources=sorted(filter(None, index.words["data_source"])),
        problems=index.problems,
    )


def matches(index: SampleIndex, query: SampleQuery) -> Mask:
    """True for each sample that is wanted."""
    columns = index.columns
    wanted = np.ones(len(columns["step"]), np.bool_)
    for name, (low, high) in query.ranges.items():
        if low is not None:
            wanted &= columns[name] >= low
        if high is not None:
            wanted &= columns[name] <= high
    for name, word in query.words.items():
        wanted &= columns[name] == index.code(name, word)
    if query.split != ANY:
        wanted &= columns["split"] == SPLITS.index(query.split)
    if query.truncated != ANY:
        wanted &= (columns["finish_reason"] == index.code("finish_reason", CUT)) == (query.truncated == "yes")
    return wanted


def _ordered(columns: dict[str, Any], matching: NDArray[np.intp], query: SampleQuery) -> NDArray[np.intp]:
    """The first ``offset + limit`` of ``matching``; only those near the page are sorted by all keys."""
    keys = columns[query.sort][matching].astype(np.float64)
    if query.descending:
        keys = -keys
    needed = query.offset + query.limit
    if needed < len(keys):
        worst = np.partition(keys, needed - 1)[needed - 1] if needed else -np.inf
        near = keys <= worst
        matching, keys = matching[near], keys[near]
    newest = -columns["number"][matching].astype(np.int64)
    order = np.lexsort((columns["index"][matching], columns["group_id"][matching], newest, keys))
    ordered: NDArray[np.intp] = matching[order]
    return ordered


def _row(index: SampleIndex, place: int) -> dict[str, Any]:
    columns = index.columns
    row: dict[str, Any] = {
        name: columns[name][place].item() for name in (*NUMBERS, "number", "row") if name != "reward"
    }
    row["reward"] = float(f"{columns['reward'][place]:.6g}")
    row |= {name: index.words[name][columns[name][place]] for name in WORDS}
    row["split"] = SPLITS[columns["split"][place]]
    row["file"] = index.files[columns["file"][place]].path.name
    return row
