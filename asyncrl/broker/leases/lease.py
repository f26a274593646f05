"""
Open leases: which node samples which indices, and until when.

Pure bookkeeping: callers pass the time and act on the returned leases. Leases are soft state: a restarted broker knows
only those its nodes report, and its lease ids are higher than all earlier ones, so that late results are recognized.
"""

from collections.abc import Iterable
from itertools import takewhile

from msgspec import Struct

from asyncrl.messages.trajectory import Unit
from asyncrl.messages.words import Split


class OpenLease(Struct, eq=False, gc=False):
    """Indices of one group leased to one node. `asyncrl.messages.rollout.Lease` is the message that grants them."""

    lease_id: int
    node: str
    group_id: int
    split: Split
    open: tuple[int, ...]
    """Indices not yet settled, ascending."""
    deadline_s: float
    granted_s: float = 0.0

    def __repr__(self) -> str:
        return f"<Lease {self.lease_id & 0xFFFFFFFF} {self.node} group={self.group_id} open={list(self.open)}>"


class LeaseBook:
    """All open leases. `expire`, `revoke`, `suspend` and `cancel` remove leases and return them."""

    def __init__(self, broker_term: int, lease_s: float) -> None:
        self._broker_term = broker_term
        self._next_id = (broker_term << 32) + 1
        self._lease_s = lease_s
        self._open: dict[int, OpenLease] = {}
        self._of_node: dict[str, dict[int, OpenLease]] = {}
        self._of_group: dict[tuple[int, Split], tuple[OpenLease, ...]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def next_id(self) -> int:
        """A new fencing number, higher than all before."""
        lease_id = self._next_id
        self._next_id += 1
        return lease_id

    def was_issued(self, lease_id: int) -> bool:
        """True for every number that a broker of this run has given out; those of earlier terms are not all known."""
        return 0 < lease_id < self._next_id

    def is_current_term(self, lease_id: int) -> bool:
        """True if this broker made the lease id, and not an earlier one of the run."""
        return lease_id >> 32 == self._broker_term

    def grant(self, node: str, group_id: int, split: Split, indices: list[int], now_s: float) -> OpenLease:
        return self._add(
            OpenLease(self.next_id(), node, group_id, split, tuple(sorted(indices)), now_s + self._lease_s, now_s)
        )

    def adopt(self, lease_id: int, node: str, unit: Unit, now_s: float) -> None:
        """Add one more unit to a lease that ``node`` was granted in an earlier session."""
        if (lease := self._open.get(lease_id)) and lease.node == node:
            lease.open = tuple(sorted({*lease.open, unit.index}))
        else:
            self._add(OpenLease(lease_id, node, unit.group_id, unit.split, (unit.index,), now_s + self._lease_s, now_s))

    def settle(self, lease_id: int, index: int) -> None:
        """Close one index of a lease, with a result or a failure. The lease ends with its last index."""
        if lease := self._open.get(lease_id):
            lease.open = tuple([other for other in lease.open if other != index])
            if not lease.open:
                self._remove([lease])

    def holder(self, lease_id: int) -> str:
        """Peer of the node that holds an open lease; empty if it is not open."""
        return lease.node if (lease := self._open.get(lease_id)) else ""

    def get(self, lease_id: int) -> OpenLease | None:
        return self._open.get(lease_id)

    def older(self, than_s: float, now_s: float) -> list[OpenLease]:
        """Training leases that are open for longer, the oldest first."""
        old = takewhile(lambda lease: now_s - lease.granted_s > than_s, self._open.values())
        return [lease for lease in old if lease.split == "train"]

    def take_back(self, lease: OpenLease) -> None:
        self._remove([lease])

    def of_node(self, node: str) -> list[OpenLease]:
        """Open leases of one node, by its peer."""
        return list(self._of_node.get(node, {}).values())

    def renew(self, node: str, now_s: float) -> None:
        for lease in self._of_node.get(node, {}).values():
            lease.deadline_s = now_s + self._lease_s

    def extend(self, seconds: float) -> None:
        """Push all times back, after ``seconds`` in which no node could be heard."""
        for lease in self._open.values():
            lease.deadline_s += seconds
            lease.granted_s += seconds

    def expire(self, now_s: float) -> list[OpenLease]:
        return self._remove([lease for lease in self._open.values() if lease.deadline_s <= now_s])

    def revoke(self, node: str) -> list[OpenLease]:
        return self._remove(list(self._of_node.get(node, {}).values()))

    def suspend(self, node: str, split: Split) -> list[OpenLease]:
        """Remove the leases of one split of a node that is silent or makes no progress."""
        return self._remove([lease for lease in self._of_node.get(node, {}).values() if lease.split == split])

    def cancel(self, group_id: int, split: Split) -> list[OpenLease]:
        return self._remove(self._of_group.get((group_id, split), ()))

    def _add(self, lease: OpenLease) -> OpenLease:
        key = lease.group_id, lease.split
        self._open[lease.lease_id] = lease
        self._of_node.setdefault(lease.node, {})[lease.lease_id] = lease
        self._of_group[key] = (*self._of_group.get(key, ()), lease)
        return lease

    def _remove(self, leases: Iterable[OpenLease]) -> list[OpenLease]:
        taken = list(leases)
        for lease in taken:
            del self._open[lease.lease_id]
            held = self._of_node[lease.node]
            del held[lease.lease_id]
            if not held:
                del self._of_node[lease.node]
            key = lease.group_id, lease.split
            others = tuple([other for other in self._of_group.pop(key) if other is not lease])
            if others:
                self._of_group[key] = others
        return taken
