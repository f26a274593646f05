"""
Consequences of a spool's loss for the trajectories that it stores.

    away ─▶ they are not graded, and no batch takes their groups, until the spool is back
    lost ─▶ training groups restart, held-out trajectories are leased again; the trainer leaves groups that a step has
            taken out of that step

A stored part of an unfinished trajectory is not waited for: the next lease begins at the prompt.
"""

from collections.abc import Iterable

from asyncrl.broker.groups.group import Group, GroupBook, Slot, SlotState
from asyncrl.broker.leases.dispatcher import Dispatcher
from asyncrl.broker.leases.grading import GradeBook
from asyncrl.broker.ledger.records import Refused
from asyncrl.broker.nodes.node import NodeBook
from asyncrl.broker.nodes.spools import SpoolBook
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.training import TrainingGroups
from asyncrl.messages.spool import SpoolAddress, Spools
from asyncrl.messages.words import Role
from asyncrl.records.formatting import counted

STORED = (SlotState.STORED, SlotState.SCORED)
JOINS_S = 30.0
"""Seconds that a spool has to join after the broker's start, before it counts as away."""
TOLD: tuple[Role, ...] = ("rollout", "reward", "trainer")
"""Roles that are told about spools."""


class SpoolLoss:
    """
    Follows the loss and return of spools: holds their trajectories back or gives them up, and tells nodes the spools.
    """

    def __init__(
        self,
        spools: SpoolBook,
        groups: GroupBook,
        *,
        training: TrainingGroups,
        dispatcher: Dispatcher,
        grading: GradeBook,
        nodes: NodeBook,
        out: Outbox,
        ttl_s: float,
    ) -> None:
        self._spools = spools
        self._groups = groups
        self._training = training
        self._dispatcher = dispatcher
        self._grading = grading
        self._nodes = nodes
        self._out = out
        self._ttl_s = ttl_s
        self._joining: set[str] = set()
        """Spools that have yet to join since the broker's start, and are not told of as away."""
        self._told = 0
        """Revision of the spools that the nodes know."""

    def expect(self, hosted: str) -> None:
        """After a replay: wait for every spool with payloads but the ``hosted`` one, which joins at once."""
        names = {slot.ref.spool for group in self._groups for slot in group.slots if slot.ref} - {hosted}
        self._spools.expect(names)
        self._joining = names
        for name in names:
            self._grading.park(name)

    def joined(self, spool: SpoolAddress) -> None:
        if self._spools.joined(spool):
            self._grading.unpark(spool.name)
            if spool.name not in self._joining:
                self._out.event("spool.back", spool=spool.name)
        self._joining.discard(spool.name)

    def departed(self, name: str, now_s: float, *, is_over: bool = False) -> None:
        """Note that a spool is gone; if the run ``is_over``, nobody waits for it."""
        self._spools.departed(name, now_s)
        self._grading.park(name)
        if not is_over:
            self._tell_away(name)

    def tick(self, now_s: float, live_version: int) -> None:
        """Tell of spools that have not joined in time, and give up those that have been away for too long."""
        late, away = self._spools.overdue(now_s), self._spools.away(now_s)
        for name in sorted(self._joining):
            if name in late or away[name] >= JOINS_S:
                self._joining.remove(name)
                self._tell_away(name)
        for name in late:
            self._give_up(name, live_version)

    def notes(self, now_s: float) -> list[str]:
        """A sentence for each spool that is away, for people."""
        return [
            f"{name} has {self._absent(name)} {seconds:.0f} s: {self._awaited_of(name)}"
            for name, seconds in self._spools.away(now_s).items()
        ]

    def _absent(self, name: str) -> str:
        return "not joined since the broker's start," if name in self._joining else "been away for"

    def tell(self) -> None:
        """Tell the nodes which spools there are, if that has changed."""
        if self._told != self._spools.revision:
            self._told = self._spools.revision
            for node in (node for role in TOLD for node in self._nodes.with_role(role)):
                self._out.send(node.peer, Spools(self._spools.told_to(node.peer)))

    def _tell_away(self, name: str) -> None:
        num = sum(1 for group in self._groups for slot in group.slots if _is_stored(slot, name))
        self._out.event("spool.away", spool=name, trajectories=num, waits_s=self._ttl_s)

    def _awaited_of(self, name: str) -> str:
        """Clause about the groups that wait for a spool."""
        num = len(_holding(name, (*self._training.batches, *self._groups.held_out.values())))
        if not num:
            return "no group waits for it"
        return (
            f"the payloads of {counted(num, 'group')} are there; the run waits for it up to {self._ttl_s:g} s, then "
            f"samples them again"
        )

    def _give_up(self, name: str, live_version: int) -> None:
        self._grading.unpark(name)
        restarted = _holding(name, list(self._training.batches))
        for group in restarted:
            self._training.restart(group, live_version)
        held_out = [slot for group in self._groups.held_out.values() for slot in group.slots]
        again = [slot for slot in held_out if slot.state is SlotState.STORED and _is_stored(slot, name)]
        for slot in again:
            self._grading.remove(slot)
            lease_id = self._dispatcher.leases.next_id()
            self._out.record(Refused(slot.unit, lease_id, f"the spool {name} is lost", slot.num_tokens))
            self._dispatcher.refused(slot, lease_id)
        taken = _holding(name, self._groups.train.values())
        self._out.event(
            "spool.lost",
            spool=name,
            groups_restarted=len(restarted),
            groups_taken=len(taken),
            held_out_trajectories=len(again),
        )


def _is_stored(slot: Slot, spool: str) -> bool:
    return slot.state in STORED and slot.ref is not None and slot.ref.spool == spool


def _holding(spool: str, groups: Iterable[Group]) -> list[Group]:
    """Groups with a finished trajectory in this spool."""
    return [group for group in groups if any(_is_stored(slot, spool) for slot in group.slots)]
