"""
Sizes of what travels together, and the cut of a long list into messages.

    512 trajectories ─▶ Put [0 .. 4] Put [5 .. 9] Put [10 .. 14] ...          about 3 MiB each

The session carries far larger messages, in parts. A list is cut so that no number of items is too much, the first items
are stored before the last ones have arrived, and a message fits into one frame, which is never copied to be joined.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from asyncrl.actor.session import Limits
from asyncrl.messages.reward import ScoredItem
from asyncrl.messages.spool import PutItem, SpoolRef
from asyncrl.messages.trajectory import Image

T = TypeVar("T")

CHUNK_BYTES = 3 << 20
"""Bytes of the items in one message; a larger item travels alone."""
MAX_PAYLOAD_BYTES = 32 << 20
"""Largest payload that is stored, and most bytes that one `Fetch` may ask for; far below the largest message."""
MAX_VERDICT_BYTES = 1 << 20
"""Largest verdict on one trajectory."""
METRIC_BYTES = 14
"""Most bytes of a metric without the characters of its name."""


def cut_by_bytes(items: Iterable[T], size_of: Callable[[T], int], max_bytes: int = CHUNK_BYTES) -> Iterator[list[T]]:
    """Cut ``items``, in order, into lists of at most ``max_bytes``; a list of one item may be larger."""
    chunk: list[T] = []
    num_bytes = 0
    for item in items:
        size = size_of(item)
        if chunk and num_bytes + size > max_bytes:
            yield chunk
            chunk, num_bytes = [], 0
        chunk.append(item)
        num_bytes += size
    if chunk:
        yield chunk


def put_bytes(item: PutItem) -> int:
    return item.payload.nbytes


def wanted_bytes(wanted: SpoolRef | Image) -> int:
    return wanted.num_bytes if isinstance(wanted, Image) else wanted.length


def verdict_bytes(item: ScoredItem) -> int:
    """Size of the metrics and the answer of a verdict."""
    num_bytes = len(item.answer.encode()) if item.answer else 0
    for name in item.metrics:
        num_bytes += len(name.encode()) + METRIC_BYTES
    return num_bytes


def max_verdict_bytes(num: int) -> int:
    """Largest verdict of each of ``num`` trajectories that travel in one `Batch`: all of them take half the message."""
    return min(MAX_VERDICT_BYTES, Limits().message // 2 // num)
