"""
Prompts in the order they are asked.

    group_id ─▶ whose turn ─▶ epoch and row of that file ─▶ prompt
                (ratios)      (seed)

The order is a function of the seed alone, so the whole cursor is one number: the next ``group_id``. A broker that
restarts asks `PromptStream.at` for the same number and gets the same prompt.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from asyncrl.config.sections import Data
from asyncrl.data.dataset import BadRow, Dataset
from asyncrl.data.epochs import Epochs, permutation
from asyncrl.data.interleave import Interleave
from asyncrl.errors import DataError
from asyncrl.messages import Prompt


class Draw(Struct, frozen=True):
    """One prompt and its place in the order."""

    group_id: int
    epoch: int
    """Passes over what it is shuffled with before this one: the dataset, or its file if there are ratios."""
    row: int
    """Of the dataset: the files of ``data.train`` are numbered through."""
    prompt: Prompt


class DatasetSummary(Struct, frozen=True, kw_only=True):
    """What there is in a dataset."""

    usable: Sequence[int] = ()
    """Numbers of the rows that are prompts."""
    data_sources: frozenset[str] = frozenset()
    """Of these."""
    has_chats: bool = False
    """Some of these are chats."""
    bad: Sequence[BadRow] = ()
    """The other rows: they are skipped."""


class PromptStream:
    """
    The prompts of a dataset, epoch after epoch, each under its ``group_id``.

    Args:
        dataset: Read when a prompt is asked for.
        parts: Rows of it, in an order each.
        ratios: How often it is the turn of each part.
        limit: How many prompts there are in all; None never ends.
        census: What was found when every row was looked at.
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
        self._turns = Interleave(ratios)
        self._limit = limit
        self.summary = summary

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
        part, turn = self._turns.at(group_id)
        epoch, row = self._parts[part].at(turn)
        return Draw(group_id, epoch, row, self._dataset.prompt(row))

    def since(self, group_id: int) -> Iterator[Draw]:
        """Every prompt from ``group_id`` on."""
        while self._limit is None or group_id < self._limit:
            yield self.at(group_id)
            group_id += 1

    def __repr__(self) -> str:
        return f"<PromptStream {self._dataset!r} epochs={[len(part) for part in self._parts]} limit={self._limit}>"


def train_stream(data: Data, seed: int) -> PromptStream:
    """
    The endless stream of ``data.train``, every row of which has been looked at: 20 µs each.

    Raises:
        DataError: Names the file, the column or the row, before anything has started.
    """
    dataset = Dataset.open(data.train_files, data)
    summary = _summary(dataset, data)
    rows = _chosen(summary.usable, data, seed)
    parts = dataset.by_file(rows) if data.ratios else [rows]
    for path, part in zip(data.train_files, parts, strict=False):
        if not part:
            raise DataError(f"data.train {path!r} has a share in data.ratios, but no row that is trained on")
    order_seed = seed if data.shuffle else None
    epochs = [Epochs(part, order_seed, stream) for stream, part in enumerate(parts)]
    return PromptStream(dataset, epochs, data.ratios or (1,), summary=summary)


def held_out_stream(data: Data, max_prompts: int) -> PromptStream:
    """
    The first ``max_prompts`` rows of each file of ``data.held_out``, so that every evaluation asks the same.

    Raises:
        DataError: Names the file, the column or the row, before anything has started.
    """
    dataset = Dataset.open(data.held_out_files, data)
    summary = _summary(dataset, data)
    rows = [row for part in dataset.by_file(summary.usable) for row in part[:max_prompts]]
    return PromptStream(dataset, [Epochs(rows, None)], limit=len(rows), summary=summary)


def _summary(dataset: Dataset, data: Data) -> DatasetSummary:
    """Look at every row. Refuses bad ones if the configuration says so, and a dataset of nothing else."""
    usable, bad, data_sources, has_chats = list[int](), list[BadRow](), set[str](), False
    for row, found in enumerate(dataset.look()):
        if isinstance(found, BadRow):
            bad.append(found)
            continue
        usable.append(row)
        data_sources.add(found.data_source)
        has_chats |= bool(found.chat)
    if bad and data.on_bad_row == "refuse":
        more = f" (and {len(bad) - 1} more of {len(dataset)} rows)" if len(bad) > 1 else ""
        raise DataError(
            f"{bad[0].place}: {bad[0].reason}{more}; repair it, or leave such rows out with data.on_bad_row = 'skip'"
        )
    if not usable:
        raise DataError(f"none of the {len(dataset)} rows can be used; the first: {bad[0].place}: {bad[0].reason}")
    return DatasetSummary(usable=usable, data_sources=frozenset(data_sources), has_chats=has_chats, bad=bad)


def _chosen(usable: Sequence[int], data: Data, seed: int) -> Sequence[int]:
    """``data.max_rows`` of them, in their order."""
    if not 0 < data.max_rows < len(usable):
        return usable
    if not data.shuffle:
        return usable[: data.max_rows]
    return sorted(usable[place] for place in permutation(len(usable), seed, epoch=-1)[: data.max_rows])
