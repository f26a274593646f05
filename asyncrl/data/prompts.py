"""
The order of prompts in a run: rows by epoch, files by ratio, and the number of steps that they make.

    group_id ─▶ file     ─▶ epoch and row of that file ─▶ prompt
                (ratios)    (seed)

The order is a function of the seed alone, so the whole cursor is the next ``group_id``: after a restart of the broker
`PromptStream.at` gives the same prompt for it.
"""

import math
import random
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from asyncrl.config.config import Config
from asyncrl.config.run_file import with_steps
from asyncrl.config.sections.data import Data
from asyncrl.data.census import Census, num_shared, shared_sentence
from asyncrl.data.dataset import BadRow, Dataset
from asyncrl.data.digest import DatasetDigest, joined
from asyncrl.data.images import Keep, keep_nothing
from asyncrl.data.tools import tool_names
from asyncrl.errors import DataError
from asyncrl.messages.trajectory import Prompt

# ── epochs ────────────────────────────────────────────────────────────────────────────────────
# Order of rows in a run, epoch after epoch.
#
#     position  0  1  2  3  4 │ 5  6  7  8  9 │ 10 ...
#     epoch     0             │ 1             │  2
#     row       3  0  4  1  2 │ 2  1  4  0  3 │  ...
#
# Every row comes once per epoch. The order is a function of the seed and the epoch alone.


def permutation(size: int, seed: int, epoch: int, stream: int = 0) -> list[int]:
    """
    Order of ``size`` rows in one epoch. The same on every machine and Python version, which resuming relies on.

    Fisher-Yates from the last place down, with ``Random(...).random()``: Python guarantees the sequence of that method
    across versions, but not that of ``shuffle``.

    Args:
        stream: Gives independent orders for the same seed.
    """
    rng = random.Random(f"{seed}/{epoch}/{stream}" if stream else f"{seed}/{epoch}")
    order = list(range(size))
    for last in range(size - 1, 0, -1):
        pick = int(rng.random() * (last + 1))
        order[last], order[pick] = order[pick], order[last]
    return order


class Epochs:
    """
    Endless order of some rows.

    Args:
        rows: Row numbers, at least one.
        seed: None keeps the order of ``rows`` in every epoch.
        stream: As in `permutation`.
    """

    def __init__(self, rows: Sequence[int], seed: int | None, stream: int = 0) -> None:
        self.rows = rows
        self._seed = seed
        self._stream = stream
        self._epoch = -1
        self._order: Sequence[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, position: int) -> tuple[int, int]:
        """Epoch and row at a position, counted from 0."""
        epoch, place = divmod(position, len(self.rows))
        if self._seed is None:
            return epoch, self.rows[place]
        if epoch != self._epoch:  # the last order is kept, because positions are requested in order
            self._epoch, self._order = epoch, permutation(len(self.rows), self._seed, epoch, self._stream)
        return epoch, self.rows[self._order[place]]


# ── interleave ────────────────────────────────────────────────────────────────────────────────
# Interleaving of files by given ratios.
#
#     ratios [3, 1]     position   0  1  2  3 │ 4  5  6  7 │ ...
#                       file       0  0  0  1 │ 0  0  0  1 │
#
# Of the first n positions, file i with ratio r_i of a total R has ⌊n r_i / R⌋ or ⌈n r_i / R⌉: in no prefix is its
# share off by a whole position. The order repeats after R positions, so the whole cursor is the position.


class Interleave:
    """A fixed order of files; only the proportion of the ratios, each at least 1, matters."""

    def __init__(self, ratios: Sequence[int]) -> None:
        divisor = math.gcd(*ratios)
        self._ratios = [ratio // divisor for ratio in ratios]
        self._cycle = _cycle(self._ratios)

    def at(self, position: int) -> tuple[int, int]:
        """File at a position, and the number of earlier positions of that file."""
        cycles, place = divmod(position, len(self._cycle))
        file, before = self._cycle[place]
        return file, cycles * self._ratios[file] + before


def _cycle(ratios: Sequence[int]) -> list[tuple[int, int]]:
    """
    Return the file of each position of one cycle, with the number of its earlier positions.

    Of the files that are behind their share, the next is the one that would be behind by a whole position soonest; the
    first of several.

    Source:
        Balinsky and Young 1975, "The quota method of apportionment": this choice keeps every share between its floor
        and its ceiling.
    """
    total = sum(ratios)
    counts = [0] * len(ratios)
    cycle = []
    for position in range(1, total + 1):
        behind = [file for file, ratio in enumerate(ratios) if counts[file] * total < ratio * position]
        file = min(behind, key=lambda file: (counts[file] + 1) / ratios[file])
        cycle.append((file, counts[file]))
        counts[file] += 1
    return cycle


# ── prompts ───────────────────────────────────────────────────────────────────────────────────


class Draw(Struct, frozen=True):
    group_id: int
    epoch: int
    """Complete passes before this one: over the dataset, or over the row's file if there are ratios."""
    row: int
    """Row of the dataset, numbered across the files of ``data.train``."""
    prompt: Prompt


class DatasetSummary(Struct, frozen=True, kw_only=True):
    usable: Sequence[int] = ()
    data_sources: frozenset[str] = frozenset()
    has_chats: bool = False
    has_texts: bool = False
    num_images: int = 0
    """Number of pictures in the usable rows; a picture counts once for each row that has it."""
    tools: frozenset[str] = frozenset()
    """Names of the tools that usable rows show."""
    bad: Sequence[BadRow] = ()
    """The other rows, which are skipped."""
    census: Census = msgspec.field(default_factory=Census)
    digest: str = ""
    """Digest of the rows of each file, used or not; see `asyncrl.data.digest.check_same`."""


class PromptStream:
    """
    Prompts of a dataset, epoch after epoch, each with its ``group_id``.

    Args:
        dataset: Rows are read on demand.
        parts: Row orders of parts of the dataset.
        ratios: Ratio at which the parts are interleaved.
        limit: Total number of prompts; None: endless.
    """

    def __init__(
        self,
        dataset: Dataset,
        parts: Sequence[Epochs],
        ratios: Sequence[int] = (1,),
        *,
        limit: int | None = None,
        summary: DatasetSummary = DatasetSummary(),  # noqa: B008  (immutable)
    ) -> None:
        self._dataset = dataset
        self._parts = parts
        self._interleave = Interleave(ratios)
        self.limit = limit
        self.summary = summary

    @property
    def num_rows(self) -> int:
        """Rows of one epoch, over all parts."""
        return sum(map(len, self._parts))

    def keys(self) -> list[int]:
        """Key of each prompt of one epoch; see `asyncrl.data.census`."""
        return [self.summary.census.keys[row] for part in self._parts for row in part.rows]

    def prompts(self, every: int = 1) -> Iterator[Prompt]:
        """Prompts of one epoch in the order of the files, each once, or only ``every`` second, third and so on."""
        for part in self._parts:
            yield from map(self._dataset.prompt, part.rows[::every])

    def at(self, group_id: int) -> Draw:
        """
        Return the prompt of ``group_id``.

        Raises:
            IndexError: ``group_id`` is negative, or not below ``limit``.
            DataError: The row is unusable.
        """
        epoch, row = self.place(group_id)
        return Draw(group_id, epoch, row, self._dataset.prompt(row))

    def place(self, group_id: int) -> tuple[int, int]:
        """Epoch and row of ``group_id``, without reading the row; raises `IndexError` as `at` does."""
        if group_id < 0 or (self.limit is not None and group_id >= self.limit):
            raise IndexError(f"group {group_id} is outside the {self.limit} prompts of this stream")
        part, position = self._interleave.at(group_id)
        return self._parts[part].at(position)

    def since(self, group_id: int) -> Iterator[Draw]:
        while self.limit is None or group_id < self.limit:
            yield self.at(group_id)
            group_id += 1


def train_stream(data: Data, seed: int, keep: Keep = keep_nothing) -> PromptStream:
    """
    Make the endless stream of ``data.train``. Reads every row once, 20 µs each, and gives its pictures to ``keep``.

    Raises:
        DataError: A file cannot be read, lacks a column, or has bad rows that the configuration does not allow.
    """
    dataset = Dataset.open(data.train_files, data, keep, setting="data.train")
    summary = _summary(dataset, data)
    rows = _subset(summary.usable, data, seed)
    parts = dataset.by_file(rows) if data.ratios else [rows]
    for path, part in zip(data.train_files, parts, strict=False):
        if not part:
            raise DataError(f"data.train {path!r} has a share in data.ratios, but no row that is trained on")
    order_seed = seed if data.shuffle else None
    epochs = [Epochs(part, order_seed, stream) for stream, part in enumerate(parts)]
    return PromptStream(dataset, epochs, data.ratios or (1,), summary=summary)


def held_out_stream(data: Data, max_prompts: int, keep: Keep = keep_nothing) -> PromptStream:
    """
    Make the stream of the first ``max_prompts`` rows of each file of ``data.held_out``, or of all rows if it is 0.

    Gives the pictures of all rows to ``keep``, and raises, as `train_stream`.
    """
    dataset = Dataset.open(data.held_out_files, data, keep, setting="data.held_out")
    summary = _summary(dataset, data)
    rows = [row for part in dataset.by_file(summary.usable) for row in part[: max_prompts or None]]
    return PromptStream(dataset, [Epochs(rows, None)], limit=len(rows), summary=summary)


def num_shared_prompts(train: PromptStream, held_out: PromptStream) -> int:
    """Number of held-out prompts that are also trained on."""
    return num_shared(held_out.keys(), train.keys())


def oddities(train: PromptStream, held_out: PromptStream | None, *, are_tasks: bool = False) -> list[str]:
    """A sentence about each thing that is odd about the rows of a run; ``are_tasks`` as in `Census.sentences`."""
    named = {"data.train": train} | ({"data.held_out": held_out} if held_out else {})
    found = [
        f"{name}: {clause}"
        for name, stream in named.items()
        for clause in stream.summary.census.sentences(are_tasks=are_tasks)
    ]
    if held_out and not are_tasks and (shared := num_shared_prompts(train, held_out)):
        found.append(shared_sentence(shared, held_out.num_rows))
    return found


def _summary(dataset: Dataset, data: Data) -> DatasetSummary:
    """Read every row; raise `DataError` for bad ones that the configuration refuses, or if no row is usable."""
    usable, bad, data_sources, tools = list[int](), list[BadRow](), set[str](), set[str]()
    has_chats = has_texts = False
    census = Census()
    num_images = 0
    digests = [DatasetDigest() for _ in dataset.files]
    for row, scanned in enumerate(dataset.scan()):
        found = scanned.found
        digests[scanned.file].add(found)
        census.remarks.add(scanned.remarks, scanned.place)
        census.add(None if isinstance(found, BadRow) else found)
        if isinstance(found, BadRow):
            bad.append(found)
            continue
        usable.append(row)
        data_sources.add(found.data_source)
        has_chats |= bool(found.chat)
        has_texts |= bool(found.text)
        num_images += len(found.images)
        tools.update(tool_names(found.tools))
    if bad and data.on_bad_row == "refuse":
        more = f" (and {len(bad) - 1} more of {len(dataset)} rows)" if len(bad) > 1 else ""
        raise DataError(
            f"{bad[0].place}: {bad[0].reason}{more}; repair it, or leave such rows out with data.on_bad_row = 'skip'"
        )
    if not usable:
        raise DataError(f"none of the {len(dataset)} rows can be used; the first: {bad[0].place}: {bad[0].reason}")
    return DatasetSummary(
        usable=usable,
        data_sources=frozenset(data_sources),
        has_chats=has_chats,
        has_texts=has_texts,
        num_images=num_images,
        tools=frozenset(tools),
        bad=bad,
        census=census,
        digest=joined(digests),
    )


def _subset(usable: Sequence[int], data: Data, seed: int) -> Sequence[int]:
    """Choose ``data.max_rows`` rows, in ascending order."""
    if not 0 < data.max_rows < len(usable):
        return usable
    if not data.shuffle:
        return usable[: data.max_rows]
    return sorted(usable[place] for place in permutation(len(usable), seed, epoch=-1)[: data.max_rows])


# ── run length ────────────────────────────────────────────────────────────────────────────────
# Conversion of a run's length from epochs of its dataset to optimizer steps.


def resolve_steps(config: Config) -> Config:
    """
    Configuration with ``run.steps`` computed from ``run.epochs``; the same object if epochs are not set.

    Raises `ConfigError` if the epochs are less than one step, and `DataError` if ``data.train`` cannot be read.
    """
    if config.run.epochs is None:
        return config
    return with_steps(config, train_stream(config.data, config.run.seed).num_rows)
