"""
Who is working on what, and until when. Credits say how much a node will take.

                 grant(now)              settle(unit)
    missing ─────────────────▶ leased ─────────────────▶ gone
       ▲                         │
       └── expire(now), revoke(node) ─┘

Pure bookkeeping: callers pass the time in and act on what comes back. Leases are soft state: a broker that restarts
has none but those its nodes tell it of, and its tokens are higher than every earlier one, so that late results of old
leases are told apart.
"""

from collections.abc import Iterable

from msgspec import Struct

from asyncrl.messages import Split


class OpenLease(Struct, eq=False, gc=False):
    """Some indices of one group, in the hands of one node."""

    lease_id: int
    node: str
    group_id: int
    split: Split
    open: tuple[int, ...]
    """Not yet settled, ascending."""
    deadline_s: float

    def __repr__(self) -> str:
        return f"<Lease {self.lease_id & 0xFFFFFFFF} {self.node} group={self.group_id} open={list(self.open)}>"


class LeaseBook:
    """All open leases."""

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
        """A fencing token nobody has."""
        lease_id = self._next_id
        self._next_id += 1
        return lease_id

    def granted(self, lease_id: int) -> bool:
        """Is it one of ours, and not of an earlier broker?"""
        return lease_id >> 32 == self._broker_term

    def grant(self, node: str, group_id: int, split: Split, indices: list[int], now_s: float) -> OpenLease:
        """A new lease of ``indices`` to ``node``."""
        return self._add(
            OpenLease(self.next_id(), node, group_id, split, tuple(sorted(indices)), now_s + self._lease_s)
        )

    def adopt(  # noqa: PLR0917  called in one place
        self, lease_id: int, node: str, group_id: int, split: Split, index: int, now_s: float
    ) -> None:
        """One more index of a lease that ``node`` was given in an earlier session."""
        if (lease := self._open.get(lease_id)) and lease.node == node:
            lease.open = tuple(sorted({*lease.open, index}))
        else:
            self._add(OpenLease(lease_id, node, group_id, split, (index,), now_s + self._lease_s))

    def settle(self, lease_id: int, index: int) -> None:
        """One index of a lease has its result, or has failed; the lease is gone with its last one."""
        if lease := self._open.get(lease_id):
            lease.open = tuple([other for other in lease.open if other != index])
            if not lease.open:
                self._take([lease])

    def renew(self, node: str, now_s: float) -> None:
        """The node is alive: its leases go on."""
        for lease in self._of_node.get(node, {}).values():
            lease.deadline_s = now_s + self._lease_s

    def extend(self, seconds: float) -> None:
        """No beat could renew a lease for so long."""
        for lease in self._open.values():
            lease.deadline_s += seconds

    def expire(self, now_s: float) -> list[OpenLease]:
        """Take overdue leases back."""
        return self._take([lease for lease in self._open.values() if lease.deadline_s <= now_s])

    def revoke(self, node: str) -> list[OpenLease]:
        """Take back everything a node holds."""
        return self._take(list(self._of_node.get(node, {}).values()))

    def cancel(self, group_id: int, split: Split) -> list[OpenLease]:
        """Take back everything on one group."""
        return self._take(self._of_group.get((group_id, split), ()))

    def _add(self, lease: OpenLease) -> OpenLease:
        key = lease.group_id, lease.split
        self._open[lease.lease_id] = lease
        self._of_node.setdefault(lease.node, {})[lease.lease_id] = lease
        self._of_group[key] = (*self._of_group.get(key, ()), lease)
        return lease

    def _take(self, leases: Iterable[OpenLease]) -> list[OpenLease]:
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
