"""
Permits: the broker's proof, sealed with a key that it shares with spools alone, that it leased a trajectory.

    broker ──Lease(permit)──▶ rollout ──Put(permit)──▶ spool: asked before it stores ──Stored(permit)──▶ broker

A permit needs no memory: late results of leases that nobody remembers are told from those of leases that never were.
"""

import array
import hashlib
import hmac
import struct

from asyncrl.messages.spool import Permit
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.words import Split

SEAL_BYTES = 16
RECENT = 4096
"""Leases whose permits are compared with what was sealed or checked last, which costs a tenth of a seal."""
_HEAD = struct.Struct("<qq?")


class Permits:
    """
    Makes and checks permits.

    Args:
        key: Secret of at most 64 bytes; None lets everybody store everything, for broker rules without a run.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self.key = key
        self._keyed = hashlib.blake2b(key=key, digest_size=SEAL_BYTES) if key else None
        self._recent: dict[int, tuple[int, Split, Permit]] = {}
        """Group, split and permit by lease."""

    def grant(self, lease_id: int, group_id: int, split: Split, indices: list[int]) -> Permit:
        permit = Permit(indices, self._seal(lease_id, group_id, split, indices))
        self._remember(lease_id, group_id, split, permit)
        return permit

    def allows(self, permit: Permit, lease_id: int, unit: Unit) -> bool:
        """True if the broker leased ``unit`` under ``lease_id`` with this permit."""
        if self._keyed is None:
            return True
        if (known := self._recent.get(lease_id)) is None:
            try:
                expected = self._seal(lease_id, unit.group_id, unit.split, permit.indices)
            except (struct.error, OverflowError):  # Numbers of a foreign message may be of any size.
                return False
            if not hmac.compare_digest(permit.seal, expected):
                return False
            self._remember(lease_id, unit.group_id, unit.split, permit)
            return unit.index in permit.indices
        group_id, split, leased = known
        is_of_lease = unit.group_id == group_id and unit.split == split and unit.index in leased.indices
        return is_of_lease and hmac.compare_digest(permit.seal, leased.seal)

    def _remember(self, lease_id: int, group_id: int, split: Split, permit: Permit) -> None:
        if len(self._recent) >= RECENT:
            del self._recent[next(iter(self._recent))]
        self._recent[lease_id] = group_id, split, permit

    def _seal(self, lease_id: int, group_id: int, split: Split, indices: list[int]) -> bytes:
        if self._keyed is None:
            return b""
        keyed = self._keyed.copy()
        keyed.update(_HEAD.pack(lease_id, group_id, split == "train") + array.array("i", indices).tobytes())
        return keyed.digest()
