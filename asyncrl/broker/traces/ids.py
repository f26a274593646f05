"""Ids of traces and spans. A trace has the same id in every life of the broker, so that its spans come together."""

from hashlib import blake2b
from itertools import count


class TraceIds:
    """Ids of one life of the broker of one run. They are hashes, so each of their bits is as good as random."""

    def __init__(self, run_id: str, broker_term: int) -> None:
        self._run_id = run_id
        self._broker_term = broker_term
        self._spans = count()

    def trace(self, group_id: int) -> int:
        """128 bits that depend on the run and the group alone."""
        return _hash(f"{self._run_id}/{group_id}", 16)

    def next_span(self) -> int:
        """64 bits that were given out never before."""
        return _hash(f"{self._run_id}/{self._broker_term}/{next(self._spans)}", 8)


def _hash(text: str, num_bytes: int) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=num_bytes).digest(), "big")
