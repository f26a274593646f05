"""
Digest of a ledger's records from the first on, which changes if any of them is edited, inserted, removed or moved.

    record     1   2   3         4   5         6
    head       -   -   h(1..3)   -   h(1..5)   h(1..6)      SHA-256 of the run's id and of every body so far
                       └ transaction ends      └ the newest, which others keep too: summary, checkpoints, events

One hash runs over all bodies as they are stored, and is read where a transaction ends: half a microsecond per record.
The bodies need no separators, because a body is one msgpack value, which tells where it ends; number, kind and key of a
record follow from its place and its body.

Whoever can write the file can compute all heads anew. Heads that others keep show that, if they cannot be written too.
"""

import hashlib
from collections.abc import Collection
from typing import NamedTuple


class Head(NamedTuple):
    """Number of records, and their digest."""

    num_records: int
    digest: str
    """64 hexadecimal digits."""


class Chain:
    """Running digest; `add` the bodies in order."""

    def __init__(self, run_id: str) -> None:
        self._hash = hashlib.sha256(run_id.encode())
        self.num_records = 0

    @property
    def head(self) -> Head:
        return Head(self.num_records, self._hash.hexdigest())

    def add(self, *bodies: bytes) -> None:
        for body in bodies:  # Not joined: hashlib lets go of Python's global lock for 2 KiB and more.
            self._hash.update(body)
        self.num_records += len(bodies)

    def copy(self) -> "Chain":
        """An equal chain that goes on by itself."""
        twin = Chain("")
        twin._hash, twin.num_records = self._hash.copy(), self.num_records
        return twin


class ChainCheck:
    """
    Compares the stored heads with the records: `add` every row in order, then read `problem` and `digests`.

    Args:
        num_headless: Records that an earlier asyncrl wrote, without heads.
        wanted: Numbers of first records whose digest others keep.
    """

    def __init__(self, run_id: str, num_headless: int = 0, wanted: Collection[int] = ()) -> None:
        self.chain = Chain(run_id)
        self.digests = {0: self.chain.head.digest}
        """Digests of the first records, by their number, of those wanted."""
        self.num_headless = num_headless
        self._wanted = frozenset(wanted)
        self._num_sound = 0
        """Records up to the last head that matches."""
        self._broken_at = 0
        """First record whose head does not match; 0 if there is none."""
        self._num_covered = 0
        """Records up to the last head."""

    def add(self, body: bytes, head: object) -> None:
        self.chain.add(body)
        number = self.chain.num_records
        if head is not None:
            self._num_covered = number
            if not self._broken_at:
                is_sound = head == bytes.fromhex(self.chain.head.digest)
                self._num_sound, self._broken_at = (number, 0) if is_sound else (self._num_sound, number)
        if number in self._wanted:
            self.digests[number] = self.chain.head.digest

    @property
    def problem(self) -> str:
        """Sentence about records that are not those that were written; empty if there are none."""
        number = self.chain.num_records
        if self._broken_at:
            return (
                f"records {self._num_sound + 1} to {self._broken_at} are not those that were written: one of them was "
                f"edited, inserted, removed or moved, expected the digest stored with record {self._broken_at}"
            )
        if number > max(self._num_covered, self.num_headless):
            return (
                f"records {self._num_covered + 1} to {number} have no digest: another program wrote them, or the end "
                f"of their transaction was removed"
            )
        return ""
