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

from asyncrl.messages import Split


class Lease:
    """Some indices of one group, in the hands of one node."""

    def __init__(  # noqa: PLR0917  made in one place
        self, token: int, node: str, group_id: int, split: Split, indices: list[int], deadline_s: float
    ) -> None:
        self.token = token
        self.node = node
        self.group_id = group_id
        self.split = split
        self.open = set(indices)
        """Not yet settled."""
        self.deadline_s = deadline_s

    def __repr__(self) -> str:
        return f"<Lease {self.token & 0xFFFFFFFF} {self.node} group={self.group_id} open={sorted(self.open)}>"


class LeaseBook:
    """All open leases."""

    def __init__(self, broker_epoch: int, lease_s: float) -> None:
        self._broker_epoch = broker_epoch
        self._next_token = (broker_epoch << 32) + 1
        self._lease_s = lease_s
        self._open: dict[int, Lease] = {}
        self._of_node: dict[str, dict[int, Lease]] = {}

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
        lease = Lease(self.next_token(), node, group_id, split, indices, now_s + self._lease_s)
        self._open[lease.token] = lease
        self._of_node.setdefault(node, {})[lease.token] = lease
        return lease

    def adopt(  # noqa: PLR0917  called in one place
        self, token: int, node: str, group_id: int, split: Split, index: int, now_s: float
    ) -> None:
        """One more index of a lease that ``node`` was given in an earlier session."""
        if (lease := self._open.get(token)) and lease.node == node:
            lease.open.add(index)
            return
        lease = Lease(token, node, group_id, split, [index], now_s + self._lease_s)
        self._open[token] = lease
        self._of_node.setdefault(node, {})[token] = lease

    def settle(self, token: int, index: int) -> None:
        """One index of a lease has its result, or has failed; the lease is gone with its last one."""
        if lease := self._open.get(token):
            lease.open.discard(index)
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
        return self._take(
            [lease for lease in self._open.values() if lease.group_id == group_id and lease.split == split]
        )

    def _take(self, leases: list[Lease]) -> list[Lease]:
        for lease in leases:
            del self._open[lease.token]
            held = self._of_node[lease.node]
            del held[lease.token]
            if not held:
                del self._of_node[lease.node]
        return leases
