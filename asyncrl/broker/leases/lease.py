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


class Lease(Struct, eq=False, gc=False):
    """Some indices of one group, in the hands of one node."""

    token: int
    node: str
    group_id: int
    split: Split
    open: tuple[int, ...]
    """Not yet settled, ascending."""
    deadline_s: float

    def __repr__(self) -> str:
        return f"<Lease {self.token & 0xFFFFFFFF} {self.node} group={self.group_id} open={list(self.open)}>"


class LeaseBook:
    """All open leases."""

    def __init__(self, broker_epoch: int, lease_s: float) -> None:
        self._broker_epoch = broker_epoch
        self._next_token = (broker_epoch << 32) + 1
        self._lease_s = lease_s
        self._open: dict[int, Lease] = {}
        self._of_node: dict[str, dict[int, Lease]] = {}
        self._of_group: dict[tuple[int, Split], tuple[Lease, ...]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def next_token(self) -> int:
        """A fencing token nobody has."""
        token = self._next_token
        self._next_token += 1
        return token

    def granted(self, token: int) -> bool:
        """Is it one of ours, and not of an earlier broker?"""
        return token >> 32 == self._broker_epoch

    def grant(self, node: str, group_id: int, split: Split, indices: list[int], now_s: float) -> Lease:
        """A new lease of ``indices`` to ``node``."""
        return self._add(Lease(self.next_token(), node, group_id, split, tuple(sorted(indices)), now_s + self._lease_s))

    def adopt(  # noqa: PLR0917  called in one place
        self, token: int, node: str, group_id: int, split: Split, index: int, now_s: float
    ) -> None:
        """One more index of a lease that ``node`` was given in an earlier session."""
        if (lease := self._open.get(token)) and lease.node == node:
            lease.open = tuple(sorted({*lease.open, index}))
        else:
            self._add(Lease(token, node, group_id, split, (index,), now_s + self._lease_s))

    def settle(self, token: int, index: int) -> None:
        """One index of a lease has its result, or has failed; the lease is gone with its last one."""
        if lease := self._open.get(token):
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

    def expire(self, now_s: float) -> list[Lease]:
        """Take overdue leases back."""
        return self._take([lease for lease in self._open.values() if lease.deadline_s <= now_s])

    def revoke(self, node: str) -> list[Lease]:
        """Take back everything a node holds."""
        return self._take(list(self._of_node.get(node, {}).values()))

    def cancel(self, group_id: int, split: Split) -> list[Lease]:
        """Take back everything on one group."""
        return self._take(self._of_group.get((group_id, split), ()))

    def _add(self, lease: Lease) -> Lease:
        key = lease.group_id, lease.split
        self._open[lease.token] = lease
        self._of_node.setdefault(lease.node, {})[lease.token] = lease
        self._of_group[key] = (*self._of_group.get(key, ()), lease)
        return lease

    def _take(self, leases: Iterable[Lease]) -> list[Lease]:
        taken = list(leases)
        for lease in taken:
            del self._open[lease.token]
            held = self._of_node[lease.node]
            del held[lease.token]
            if not held:
                del self._of_node[lease.node]
            key = lease.group_id, lease.split
            others = tuple([other for other in self._of_group.pop(key) if other is not lease])
            if others:
                self._of_group[key] = others
        return taken
