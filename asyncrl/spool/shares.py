"""
Shares of a spool's disk: of several nodes none may hold more than half of what there is room for.

A node with a bug, or a wish, can store each of its leases again and again; the others need room meanwhile.
"""

from collections import Counter, defaultdict
from collections.abc import Callable


class Shares:
    """Bytes on disk by the name of their node, until their segment is trimmed."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._segments: dict[int, Counter[str]] = defaultdict(Counter)

    def stored(self, node: str, segment: int, num_bytes: int) -> None:
        self._held[node] += num_bytes
        self._segments[segment][node] += num_bytes

    def trimmed(self, below: int) -> None:
        """Segments older than ``below`` are gone."""
        for segment in [number for number in self._segments if number < below]:
            self._held.subtract(self._segments.pop(segment))
        self._held = +self._held

    def allows(self, node: str, num_bytes: int, free_bytes: Callable[[], int]) -> bool:
        """True if a node may store so much more, with ``free_bytes()`` left on the disk."""
        own = self._held[node] + num_bytes
        others = self._held.total() - self._held[node]
        return not others or 2 * own <= self._held.total() + free_bytes()
