"""
Who samples what: leases for credits, and what becomes of them.

                 grant                    settle
    missing ─────────────────▶ leased ───────────────▶ stored
       ▲                         │ progressed: so far on disk
       └── lost, failed ─────────┘
           leased again with what is on disk of it, the missing indices only, before fresh groups

After a restart of the broker nothing is leased until everybody who was there has said what it holds (`adopt`), or has
been given up: what is still being worked on is not given to a second node.
"""

from collections.abc import Callable, Sequence

from asyncrl.broker.groups.group import Group, Slot, State
from asyncrl.broker.leases.credits import CreditBook
from asyncrl.broker.leases.lease import LeaseBook, OpenLease
from asyncrl.broker.leases.lease_terms import lease_message
from asyncrl.broker.leases.waiting import WaitingGroups
from asyncrl.broker.ledger.records import Progressed, Reissued
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.config.sections import Config
from asyncrl.messages import Cancelled, Held, StoredItem, Unit


class Dispatcher:
    """
    All leases, and the groups that want one.

    Args:
        config: The run.
        evaluation: Whose prompts go to the node it holds.
        group_of: Open groups, by a unit of theirs.
        out: Where messages, records and events go.
        broker_term: Higher than in any earlier life of this run's broker.
    """

    def __init__(
        self,
        config: Config,
        evaluation: EvaluationBook,
        group_of: Callable[[Unit], Group | None],
        out: Outbox,
        broker_term: int,
    ) -> None:
        self._config = config
        self._evaluation = evaluation
        self._group_of = group_of
        self._out = out
        self.leases = LeaseBook(broker_term, config.schedule.lease_s)
        self.credits = CreditBook()
        """Of rollouts."""
        self.unleased = WaitingGroups()
        self._absent: set[str] = set()
        """Rollouts of the broker's earlier life that have not said yet what they hold."""
        self._absent_until_s: float | None = None

    def slot(self, unit: Unit) -> Slot | None:
        """Its place in an open group, if it has one."""
        group = self._group_of(unit)
        return group.slots[unit.index] if group and 0 <= unit.index < len(group.slots) else None

    # ── given ───────────────────────────────────────────────────────────────────────────────

    def wanted(self, group: Group) -> None:
        """Some of its trajectories are missing."""
        ongoing = self._evaluation.ongoing
        waiting = ongoing.waiting if ongoing and group.split == "held_out" else self.unleased
        waiting.add(group)

    def grant(self, nodes: NodeBook, now_s: float) -> None:
        """Give leases as long as there are groups that want one and nodes with credits."""
        if (ongoing := self._evaluation.ongoing) and (held := nodes.get(ongoing.peer)):
            while held.credits > 0 and (group := ongoing.waiting.first()):
                self._lease(group, held, group.indices(State.MISSING)[: held.credits], now_s)
        if self._awaits_nodes(now_s):
            return
        while group := self.unleased.first():
            indices = group.indices(State.MISSING)  # Whole leases, so that a prompt is prefilled once.
            node = self.credits.most(len(indices), group.min_version)
            if node is None:
                return
            self._lease(group, node, indices, now_s)

    def _lease(self, group: Group, node: Node, indices: list[int], now_s: float) -> None:
        lease = self.leases.grant(node.peer, group.group_id, group.split, indices, now_s)
        for index in indices:
            group.slots[index].lease(lease.lease_id)
        self.spend(node, len(indices))
        self._out.send(node.peer, lease_message(self._config, group, lease))

    def spend(self, node: Node, count: int) -> None:
        """So many of its credits are used."""
        node.granted += count
        self.credits.update(node)

    # ── told ────────────────────────────────────────────────────────────────────────────────

    def progressed(self, item: StoredItem) -> None:
        """What is written so far of an unfinished trajectory is on disk. Of a lease that ended it comes too late."""
        slot = self.slot(item.unit)
        if slot and slot.is_leased_by(item.lease_id):
            slot.progress(item.ref, item.summary)
            self._out.record(Progressed(item.unit, item.lease_id, item.ref, item.summary))

    def is_outlived(self, item: StoredItem) -> bool:
        """
        Was it leased to a group that is another one today?

        Ids of held-out groups were then other prompts'; a group admitted anew, or begun anew by any broker, may have to
        be of a newer version.
        """
        group = self._group_of(item.unit)
        if group is None:
            return False
        if group.split == "held_out":
            return not self.leases.granted(item.lease_id)
        return item.summary.oldest_version < group.min_version

    # ── taken back ──────────────────────────────────────────────────────────────────────────

    def revoke(self, node: Node, cause: str) -> int:
        """A node is gone: what it held waits for another. Returns how many leases that were."""
        self.credits.remove(node.peer)
        revoked = self.leases.revoke(node.peer)
        for lease in revoked:
            self._lost(lease, cause)
        return len(revoked)

    def expire(self, now_s: float) -> None:
        """Take overdue leases back."""
        for lease in self.leases.expire(now_s):
            self._out.event("lease.expired", group_id=lease.group_id, node=lease.node)
            self._lost(lease, "expired")

    def failed(self, slot: Slot, lease_id: int) -> None:
        """A generation broke. It begins anew: what it had written may be the reason."""
        thrown_away = slot.summary.num_tokens if slot.summary else 0
        slot.begin_anew()
        self._missing(slot, lease_id, "failed", thrown_away)

    def cancel(self, group: Group) -> None:
        """Nobody wants its trajectories any more."""
        for lease in self.leases.cancel(group.group_id, group.split):
            self._out.send(lease.node, Cancelled([lease.lease_id]))
        self.unleased.discard(group.group_id)

    def _lost(self, lease: OpenLease, cause: str) -> None:
        for index in lease.open:
            slot = self.slot(Unit(lease.group_id, index, lease.split))
            if slot and slot.is_leased_by(lease.lease_id):
                self._missing(slot, lease.lease_id, cause)

    def _missing(self, slot: Slot, lease_id: int, cause: str, num_tokens: int = 0) -> None:
        slot.state = State.MISSING
        self._out.record(Reissued(slot.unit, lease_id, cause, num_tokens))
        if group := self._group_of(slot.unit):
            self.wanted(group)

    # ── found again ─────────────────────────────────────────────────────────────────────────

    def expect(self, names: set[str]) -> None:
        """These rollouts were there when the broker died: they may hold what looks as if nobody did."""
        self._absent = names

    def adopt(self, node: Node, held: Sequence[Held], now_s: float) -> None:
        """A node came with trajectories in hand, leased in an earlier session. Those of use stay its own."""
        self._absent.discard(node.name)
        if not held:
            return
        self.spend(node, len(held))
        unwanted = [item.unit for item in held if not self._adopted(item, node, now_s)]
        if unwanted:
            self._out.send(node.peer, Cancelled([], unwanted))
        num_adopted = len(held) - len(unwanted)
        self._out.event("leases.adopted", node=node.name, trajectories=num_adopted, cancelled=len(unwanted))

    def _adopted(self, item: Held, node: Node, now_s: float) -> bool:
        """It is the node's own again; False if nobody wants it, or somebody else has it."""
        unit, group, slot = item.unit, self._group_of(item.unit), self.slot(item.unit)
        if group is None or slot is None or slot.state is not State.MISSING:
            return False
        if unit.split == "held_out" or item.oldest_version < group.min_version:
            return False
        self.leases.adopt(item.lease_id, node.peer, unit.group_id, unit.split, unit.index, now_s)
        slot.lease(item.lease_id)
        return True

    def _awaits_nodes(self, now_s: float) -> bool:
        if not self._absent:
            return False
        if self._absent_until_s is None:
            self._absent_until_s = now_s + self._config.broker.node_ttl_s
        if now_s >= self._absent_until_s:
            self._absent.clear()
        return bool(self._absent)
