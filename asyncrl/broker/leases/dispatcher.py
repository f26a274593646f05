"""
Leases from grant to end: which rollout samples which group. Rollouts are picked by their credits.

                 grant                    settle
    missing ─────────────────▶ leased ───────────────▶ stored
       ▲                         │ progressed: unfinished part on disk      │
       ├── lost, failed ─────────┘                                           │
       └── refused: damaged ─────────────────────────────────────────────────┘
           leased again from the part on disk, the missing indices only, before fresh groups

What a stalled node holds, and a silent one while the trainer waits, may be leased to others (`suspend`). If it works
again, it gets back what nobody has taken over (`resume`); of two nodes that sample the same trajectory, the first
result counts.

After a restart the broker grants no lease until every rollout of its earlier life has reported what it still samples
(`adopt`) or has been given up: otherwise two nodes would sample the same trajectory.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Sequence

from asyncrl.broker.groups.group import OPEN, Group, GroupBook, Slot, SlotState
from asyncrl.broker.leases.lease import LeaseBook, OpenLease, WaitingGroups, lease_message
from asyncrl.broker.ledger.records import Progressed, Reissued
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.nodes.spools import SpoolBook
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.config.config import Config
from asyncrl.messages.permit import Permits
from asyncrl.messages.rollout import Cancelled, Release
from asyncrl.messages.session import Held
from asyncrl.messages.spool import StoredItem
from asyncrl.messages.trajectory import Unit

# ── credits ───────────────────────────────────────────────────────────────────────────────────
# Nodes that can take work, by credits. Finding one costs the same with ten nodes as with ten thousand.
#
#     credits   6: a   4: c d   1: b        pick_node(2) ─▶ a, then, once a has 3 left: c, d, ...
#
# Nodes with equally many credits are served in turn.


class CreditBook:
    """Nodes of one role with credits left. Call `update` after each change of a node's credits."""

    def __init__(self) -> None:
        self._by_credits: defaultdict[int, OrderedDict[str, Node]] = defaultdict(OrderedDict)
        """OrderedDict, because finding the first key of a plain dict slows down as first keys are deleted."""
        self._credits_of: dict[str, int] = {}

    def update(self, node: Node) -> None:
        """File a node anew after its credits or its ability to work changed."""
        number = node.credits if node.is_able else 0
        if number != self._credits_of.get(node.peer, 0):
            self.remove(node.peer)
            if number:
                self._credits_of[node.peer] = number
                self._by_credits[number][node.peer] = node

    def spend(self, node: Node, count: int) -> None:
        """Count work that a node was given."""
        node.granted += count
        self.update(node)

    def remove(self, peer: str) -> None:
        if had := self._credits_of.pop(peer, 0):
            del self._by_credits[had][peer]
            if not self._by_credits[had]:
                del self._by_credits[had]

    def pick_node(self, at_least: int, min_version: int = -1, without: Collection[str] = ()) -> Node | None:
        """
        Node with the most credits, if any has ``at_least`` credits and decodes with ``min_version`` or newer.

        ``without`` are names of nodes that are not wanted.
        """
        for number in sorted(self._by_credits, reverse=True):
            if number < at_least:
                return None
            for node in self._by_credits[number].values():
                if node.policy_version >= min_version and node.name not in without:
                    return node
        return None


# ── dispatcher ────────────────────────────────────────────────────────────────────────────────


class Dispatcher:
    """
    Grants leases: training groups to rollouts with credits, held-out groups to the rollout that runs the
    ``evaluation``.
    """

    def __init__(
        self,
        config: Config,
        groups: GroupBook,
        evaluation: EvaluationBook,
        spools: SpoolBook,
        *,
        out: Outbox,
        broker_term: int,
        permits: Permits = Permits(),  # noqa: B008  stateless
    ) -> None:
        self._config = config
        self._groups = groups
        self._evaluation = evaluation
        self._spools = spools
        self._out = out
        self.leases = LeaseBook(broker_term, config.schedule.lease_s)
        self.permits = permits
        self.credits = CreditBook()
        self.unleased = WaitingGroups()
        """Training groups with missing trajectories."""
        self._suspended: dict[str, list[tuple[OpenLease, int]]] = {}
        """Former leases of each silent node, by its peer, and how often their groups had been restarted."""
        self._absent: set[str] = set()
        """Rollouts of the broker's earlier life that have not yet reported what they sample."""
        self._absent_until_s: float | None = None

    # ── granting ────────────────────────────────────────────────────────────────────────────

    def wanted(self, group: Group) -> None:
        ongoing = self._evaluation.ongoing
        waiting = ongoing.waiting if ongoing and group.split == "held_out" else self.unleased
        waiting.add(group)

    def grant(self, nodes: NodeBook, now_s: float) -> None:
        """Grant leases while groups wait and nodes have credits."""
        if (ongoing := self._evaluation.ongoing) and (held := nodes.get(ongoing.peer)):
            while held.credits > 0 and (group := ongoing.waiting.first()):
                self._lease(group, held, group.indices(SlotState.MISSING)[: held.credits], now_s)
        if self._absent and self._awaits_nodes(now_s):
            return
        aside: list[Group] = []
        while group := self.unleased.first():
            indices = group.indices(SlotState.MISSING)  # In one lease, so that the prompt is prefilled once.
            failed = {name for index in indices for name in group.slots[index].failed_on}
            avoided = nodes.to_avoid("rollout", failed)
            node = self.credits.pick_node(len(indices), group.min_version, avoided)
            if node is not None:
                self._lease(group, node, indices, now_s)
            elif avoided:  # Others can be sampled where this one has failed.
                self.unleased.discard(group.group_id)
                aside.append(group)
            else:
                break
        for group in aside:
            self.unleased.add(group)

    def _lease(self, group: Group, node: Node, indices: list[int], now_s: float) -> None:
        lease = self.leases.grant(node.peer, group.group_id, group.split, indices, now_s)
        for slot in (group.slots[index] for index in indices):
            if slot.ref is not None and not self._spools.is_reachable(slot.ref):
                # The spool with its stored part is away: it is sampled from its prompt.
                num_tokens = slot.num_tokens
                slot.discard_progress()
                self._out.record(Reissued(slot.unit, slot.lease_id, "spool_away", num_tokens))
            slot.lease(lease.lease_id)
        self.credits.spend(node, len(indices))
        permit = self.permits.grant(lease.lease_id, group.group_id, group.split, indices)
        self._out.send(node.peer, lease_message(self._config, group, lease, permit))

    # ── results ─────────────────────────────────────────────────────────────────────────────

    def progressed(self, item: StoredItem) -> None:
        """Record that an unfinished part is on disk. Ignored if its lease has ended."""
        slot = self._groups.slot(item.unit)
        if slot and slot.is_leased_by(item.lease_id):
            slot.progress(item.ref, item.summary)
            self._out.record(Progressed(item.unit, item.lease_id, item.ref, item.summary))

    def is_outdated(self, item: StoredItem, group: Group, slot: Slot) -> bool:
        """
        True if ``item`` is a result for an earlier group with the id of ``group``, or from before its restart, or one
        that was refused.

        A restarted broker may give the id of a held-out group to another prompt. A training group that was admitted
        again or restarted may need a newer version than the one that wrote ``item``.
        """
        if item.lease_id < slot.void_below:
            return True
        if group.split == "held_out":
            return not self.leases.is_current_term(item.lease_id)
        return item.summary.oldest_version < group.min_version

    # ── taking back ─────────────────────────────────────────────────────────────────────────

    def revoke(self, node: Node, cause: str) -> int:
        """Take back every lease of a node that is gone. Returns the number of trajectories that are re-issued."""
        self.credits.remove(node.peer)
        self._suspended.pop(node.peer, None)
        return sum(self._lost(lease, cause) for lease in self.leases.revoke(node.peer))

    def suspend(self, node: Node) -> None:
        """Let other rollouts sample what a node holds that is silent or makes no progress."""
        if suspended := self.leases.suspend(node.peer, "train"):
            groups = [self._groups.group(Unit(lease.group_id, 0, lease.split)) for lease in suspended]
            self._suspended[node.peer] = [
                (lease, group.num_restarts) for lease, group in zip(suspended, groups, strict=True) if group
            ]
            cause = "stalled" if node.is_stalled else "silent"
            num_reissued = sum(self._lost(lease, cause) for lease in suspended)
            self._out.event("leases.suspended", node=node.name, trajectories_reissued=num_reissued)

    def leave_evaluation(self, node: Node) -> None:
        """Take the held-out groups of a node without progress back, and tell the node."""
        leases = self.leases.suspend(node.peer, "held_out")
        for lease in leases:
            self._lost(lease, "stalled")
        if leases:
            self._out.send(node.peer, Cancelled([lease.lease_id for lease in leases]))
            self._out.send(node.peer, Release())

    def resume(self, node: Node, now_s: float) -> None:
        """A node works again: lease to it what nobody has taken over, and cancel what is not wanted."""
        unwanted: list[Unit] = []
        for lease, num_restarts in self._suspended.pop(node.peer, ()):
            for index in lease.open:
                unit = Unit(lease.group_id, index, lease.split)
                group, slot = self._groups.find(unit)
                if slot is None or group is None or group.num_restarts > num_restarts or slot.state not in OPEN:
                    unwanted.append(unit)
                elif slot.state is SlotState.MISSING:
                    self.leases.adopt(lease.lease_id, node.peer, unit, now_s)
                    slot.lease(lease.lease_id)
        if unwanted:
            self._out.send(node.peer, Cancelled([], unwanted))

    def expire(self, now_s: float) -> None:
        for lease in self.leases.expire(now_s):
            self._out.event("lease.expired", group_id=lease.group_id, node=lease.node)
            self._lost(lease, "expired")

    def overdue(self, lease: OpenLease) -> None:
        """Let others sample what a node has kept for far longer than they take."""
        self.leases.take_back(lease)
        self._lost(lease, "overdue")
        self._out.event("lease.overdue", group_id=lease.group_id, node=lease.node)
        self._out.send(lease.node, Cancelled([lease.lease_id]))

    def failed(self, slot: Slot, lease_id: int) -> None:
        """Lease again after a failed generation, from the prompt: the part on disk may have caused the failure."""
        thrown_away = slot.num_tokens
        slot.discard_progress()
        self._mark_missing(slot, lease_id, "failed", thrown_away)

    def refused(self, slot: Slot, lease_id: int) -> None:
        """Lease again, from the prompt, what the grading ``lease_id`` found damaged."""
        slot.refuse(lease_id)
        if group := self._groups.group(slot.unit):
            self.wanted(group)

    def cancel(self, group: Group) -> None:
        """Tell the nodes that sample a group to stop."""
        for lease in self.leases.cancel(group.group_id, group.split):
            self._out.send(lease.node, Cancelled([lease.lease_id]))
        self.unleased.discard(group.group_id)

    def _lost(self, lease: OpenLease, cause: str) -> int:
        """Re-issue what a lease has open. Returns the number of trajectories."""
        slots = [self._groups.slot(Unit(lease.group_id, index, lease.split)) for index in lease.open]
        reissued = [slot for slot in slots if slot and slot.is_leased_by(lease.lease_id)]
        for slot in reissued:
            self._mark_missing(slot, lease.lease_id, cause)
        return len(reissued)

    def _mark_missing(self, slot: Slot, lease_id: int, cause: str, num_tokens: int = 0) -> None:
        slot.state = SlotState.MISSING
        self._out.record(Reissued(slot.unit, lease_id, cause, num_tokens))
        if group := self._groups.group(slot.unit):
            self.wanted(group)

    # ── leases of an earlier session ────────────────────────────────────────────────────────

    def expect(self, names: set[str]) -> None:
        """Wait for these rollouts of the broker's earlier life: they may still sample what looks unleased."""
        self._absent = names

    @property
    def awaited(self) -> list[str]:
        """Rollouts of the broker's earlier life whose report is awaited before any lease is granted."""
        return sorted(self._absent)

    def adopt(self, node: Node, held: Sequence[Held], now_s: float) -> None:
        """Lease to a node the trajectories it still samples since an earlier session; cancel the unwanted ones."""
        self._absent.discard(node.name)
        if not held:
            return
        self.credits.spend(node, len(held))
        unwanted = [item.unit for item in held if not self._adopted(item, node, now_s)]
        if unwanted:
            self._out.send(node.peer, Cancelled([], unwanted))
        num_adopted = len(held) - len(unwanted)
        self._out.event("leases.adopted", node=node.name, trajectories=num_adopted, cancelled=len(unwanted))

    def _adopted(self, item: Held, node: Node, now_s: float) -> bool:
        """
        Lease a trajectory that a node still holds to it again. False if it is not wanted, or leased to another node.
        """
        unit = item.unit
        group, slot = self._groups.find(unit)
        if group is None or slot is None or slot.state is not SlotState.MISSING:
            return False
        if not self.permits.allows(item.permit, item.lease_id, unit):
            return False
        if item.oldest_version < group.min_version or item.lease_id < slot.void_below:
            return False
        if unit.split == "held_out" and not (
            self.leases.is_current_term(item.lease_id)  # Another term may have given the group's id to another prompt.
            and self._evaluation.returned(node.peer, item.oldest_version)
        ):
            return False
        self.leases.adopt(item.lease_id, node.peer, unit, now_s)
        slot.lease(item.lease_id)
        return True

    def _awaits_nodes(self, now_s: float) -> bool:
        if self._absent_until_s is None:
            self._absent_until_s = now_s + self._config.broker.node_ttl_s
        if now_s >= self._absent_until_s:
            self._absent.clear()
        return bool(self._absent)
