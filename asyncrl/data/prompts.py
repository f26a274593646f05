"""
Prompts in the order they are asked.

    group_id   0  1  2  3  4 │ 5  6  7  8  9 │ 10 ...
    epoch      0             │ 1             │  2
    row        3  0  4  1  2 │ 2  1  4  0  3 │  ...

The order is a function of the seed and the epoch alone, so the whole cursor is one number: the next ``group_id``.
A broker that restarts asks `PromptStream.at` for the same number and gets the same prompt.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from asyncrl.config import Data
from asyncrl.data.row import prompt_of, require_columns
from asyncrl.data.table import Rows, open_rows
from asyncrl.messages import Prompt


class Draw(Struct, frozen=True):
    """One prompt and its place in the order."""

    group_id: int
    epoch: int
    row: int
    prompt: Prompt


def permutation(size: int, seed: int, epoch: int) -> list[int]:
    """
    The order of ``size`` rows in one epoch. The same on every machine and Python version, which resuming relies on.

    Fisher-Yates from the last place down, fed by ``Random(f"{seed}/{epoch}").random()``: Python promises that method's
    sequence for ever, but not that of ``shuffle``.
    """
    rng = random.Random(f"{seed}/{epoch}")
    order = list(range(size))
    for last in range(size - 1, 0, -1):
        pick = int(rng.random() * (last + 1))
        order[last], order[pick] = order[pick], order[last]
    return order


class PromptStream:
    """
    The prompts of a dataset, epoch after epoch, each under its ``group_id``.

    Args:
        rows: The dataset. Read when a prompt is asked for.
        data: Names the columns, and whether to shuffle.
        seed: With the epoch, decides the order.
        limit: How many prompts there are in all; None never ends.
    """

    def __init__(self, rows: Rows, data: Data, seed: int, *, limit: int | None = None) -> None:
        require_columns(rows, data)
        self._rows = rows
        self._data = data
        self._seed = seed
        self._limit = limit
        self._epoch = -1
        self._order: list[int] = []

    @property
    def limit(self) -> int | None:
        """How many prompts there are in all; None never ends."""
        return self._limit

    def at(self, group_id: int) -> Draw:
        """
        The prompt of ``group_id``.

        Raises:
            IndexError: It is not below ``limit``.
            DataError: The row cannot be used; names it.
        """
        if group_id < 0 or (self._limit is not None and group_id >= self._limit):
            raise IndexError(f"group {group_id} is outside the {self._limit} prompts of this stream")
        epoch, place = divmod(group_id, len(self._rows))
        row = self._order_of(epoch)[place] if self._data.shuffle else place
        return Draw(group_id, epoch, row, prompt_of(self._rows, row, self._data))

    def since(self, group_id: int) -> Iterator[Draw]:
        """Every prompt from ``group_id`` on."""
        while self._limit is None or group_id < self._limit:
            yield self.at(group_id)
            group_id += 1

    def _order_of(self, epoch: int) -> list[int]:
        """The permutation of ``epoch``; the last one asked for is kept, because epochs are asked in order."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, permutation(len(self._rows), self._seed, epoch)
        return self._order

    def __repr__(self) -> str:
        return f"<PromptStream {self._rows.path} rows={len(self._rows)} seed={self._seed} limit={self._limit}>"


def train_stream(data: Data, seed: int) -> PromptStream:
    """
    The endless stream of ``data.train``, every row of which has been looked at: 10 µs each.

    Raises:
        DataError: Names the file, the column or the row, before anything has started.
    """
    return PromptStream(_checked(data.train, data), data, seed)


def held_out_stream(data: Data, max_prompts: int) -> PromptStream:
    """
    The first ``max_prompts`` rows of ``data.held_out`` in file order, so that every evaluation asks the same.

    Raises:
        DataError: Names the file, the column or the row, before anything has started.
    """
    rows = _checked(data.held_out, data)
    in_order = msgspec.structs.replace(data, shuffle=False)
    return PromptStream(rows, in_order, seed=0, limit=min(max_prompts, len(rows)))


def _checked(path: str, data: Data) -> Rows:
    rows = open_rows(Path(path))
    require_columns(rows, data)
    for row in range(len(rows)):
        prompt_of(rows, row, data)
    return rows
