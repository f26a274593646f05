"""
The order of prompts in a run.

    group_id ─▶ file     ─▶ epoch and row of that file ─▶ prompt
                (ratios)    (seed)

The order is a function of the seed alone, so the whole cursor is the next ``group_id``: after a restart of the broker
`PromptStream.at` gives the same prompt for it.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from asyncrl.config.sections.data import Data
from asyncrl.data.dataset import BadRow, Dataset
from asyncrl.data.digest import FileDigest, joined
from asyncrl.data.epochs import Epochs, permutation
from asyncrl.data.images import Keep, keep_nothing
from asyncrl.data.interleave import Interleave
from asyncrl.data.row import num_marks
from asyncrl.errors import DataError
from asyncrl.messages.trajectory import Prompt


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
    num_marked: int = 0
    """Number of usable rows with the mark of a picture and no picture."""
    bad: Sequence[BadRow] = ()
    """The other rows, which are skipped."""
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


def _summary(dataset: Dataset, data: Data) -> DatasetSummary:
    """Read every row; raise `DataError` for bad ones that the configuration refuses, or if no row is usable."""
    usable, bad, data_sources = list[int](), list[BadRow](), set[str]()
    has_chats = has_texts = False
    num_images = num_marked = 0
    digests = [FileDigest() for _ in range(dataset.num_files)]
    for row, (file, found) in enumerate(dataset.scan()):
        digests[file].add(found)
        if isinstance(found, BadRow):
            bad.append(found)
            continue
        usable.append(row)
        data_sources.add(found.data_source)
        has_chats |= bool(found.chat)
        has_texts |= bool(found.text)
        num_images += len(found.images)
        num_marked += not found.images and num_marks(found) > 0
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
        num_marked=num_marked,
        bad=bad,
        digest=joined(digests),
    )


def _subset(usable: Sequence[int], data: Data, seed: int) -> Sequence[int]:
    """Choose ``data.max_rows`` rows, in ascending order."""
    if not 0 < data.max_rows < len(usable):
        return usable
    if not data.shuffle:
        return usable[: data.max_rows]
    return sorted(usable[place] for place in permutation(len(usable), seed, epoch=-1)[: data.max_rows])
