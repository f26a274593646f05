"""
Availability of nodes: which of them get work, who does the work of the others, and for whom a run waits.

    silent, stalled, barred ─▶ away: it gets no new work, and others sample, grade and evaluate what it has in hand
    heard, moving, admitted ─▶ back: it gets again what nobody has taken over

Silence and standstill are seen by `NodeBook`, faults by `FaultBook`; what follows from them is decided here.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from asyncrl.broker.leases.dispatcher import CreditBook, Dispatcher
from asyncrl.broker.leases.grading import GradeBook
from asyncrl.broker.nodes.faults import FaultBook
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.nodes.spools import SpoolBook
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.settings import Supervisors
from asyncrl.broker.versions.versions import Versions
from asyncrl.messages.session import Barred
from asyncrl.messages.words import Role
from asyncrl.records.states import NEEDED

if TYPE_CHECKING:  # which asks here who waits
    from asyncrl.broker.scheduler import Scheduler

WORKERS: tuple[Role, ...] = ("rollout", "reward", "spool")
"""Roles of which a run has several nodes that do the same, so that their faults can be compared."""


class Availability:
    """
    Takes nodes out of work and lets them in again.

    Args:
        credit_books: Nodes with credits left, by role.
    """

    def __init__(
        self,
        nodes: NodeBook,
        faults: FaultBook,
        credit_books: Mapping[Role, CreditBook],
        *,
        dispatcher: Dispatcher,
        grading: GradeBook,
        versions: Versions,
        spools: SpoolBook,
        supervisors: Supervisors,
        out: Outbox,
    ) -> None:
        self._nodes = nodes
        self._faults = faults
        self._credit_books = credit_books
        self._dispatcher = dispatcher
        self._grading = grading
        self._versions = versions
        self._spools = spools
        self._supervisors = supervisors
        self._out = out

    def changed(self, node: Node) -> None:
        """File the credits of a node anew, after a message of it or a change of its availability."""
        if book := self._credit_books.get(node.role):
            book.update(node)

    # ── silence and standstill ──────────────────────────────────────────────────────────────

    def heard(self, node: Node, now_s: float) -> None:
        """A node is heard that was quiet."""
        node.is_quiet = False
        self._out.event("node.heard", node=node.name, role=node.role)
        self._back(node, now_s)

    def tick(self, now_s: float, *, is_awaited: bool) -> None:
        """
        Apply time limits: of silence, of standstill, and of pauses for faults.

        ``is_awaited`` is True while the trainer waits for a batch.
        """
        for node in self._nodes.falling_quiet(now_s):
            silent_s = round(now_s - node.heard_s, 2)
            self._out.event("node.quiet", node=node.name, role=node.role, seconds=silent_s)
            self.changed(node)
        for node in self._nodes.stalling(now_s):
            self._stall_changed(node, now_s)
        if self._faults.has_barred:
            for name in self._faults.ended(self._nodes.able(*WORKERS), now_s):
                self._admitted(name, now_s)
        self._suspend_away(is_awaited=is_awaited)

    def _stall_changed(self, node: Node, now_s: float) -> None:
        """A node was found without progress for too long, or makes progress again."""
        if node.is_stalled:
            cause = node.standstill.sentence(now_s)
            self._out.event("node.stalled", node=node.name, role=node.role, cause=cause)
            self._supervisors.notice(f"{node.name} makes no progress: {cause}; others take over its work")
            self._away(node)
        else:
            self._out.event("node.moving", node=node.name, role=node.role)
            self._supervisors.notice(f"{node.name} makes progress again")
            if not node.is_quiet:
                self._back(node, now_s)

    # ── faults ──────────────────────────────────────────────────────────────────────────────

    def judge(self, now_s: float) -> None:
        """Give no more work to nodes whose faults have come to stand out, and tell them and everybody why."""
        for barred in self._faults.judge(self._nodes.able(*WORKERS), now_s):
            self._out.event(
                "node.barred", node=barred.name, role=barred.role, cause=barred.cause, seconds=round(barred.pause_s)
            )
            self._supervisors.notice(f"{barred.name} gets no work for {barred.pause_s:g} s: {barred.cause}")
            if barred.role == "spool":
                self._spools.bar(barred.name)
            for node in self._nodes.named(barred.name):
                node.is_barred = True
                self._out.send(node.peer, Barred(barred.cause, barred.pause_s))
                self._away(node)
        self._suspend_away(is_awaited=False)

    def admit(self, name: str, now_s: float) -> None:
        """Let a barred node in again, as an operator says."""
        self._faults.admit(name)
        self._admitted(name, now_s)

    def _admitted(self, name: str, now_s: float) -> None:
        self._out.event("node.admitted", node=name)
        self._supervisors.notice(f"{name} is given work again")
        self._spools.admit(name)
        for node in self._nodes.named(name):
            node.is_barred = False
            self._back(node, now_s)

    # ── work in hand ────────────────────────────────────────────────────────────────────────

    def _away(self, node: Node) -> None:
        """A node gets no new work: others grade what it has in hand, and evaluate if they can."""
        self.changed(node)
        self._grading.revoke(node.peer)
        if node.role == "rollout" and not all(other.is_away for other in self._nodes.rollouts()):
            self._dispatcher.leave_evaluation(node)
            self._versions.free_evaluation(node)

    def _back(self, node: Node, now_s: float) -> None:
        """A node that was away works again: it gets back what nobody has taken over."""
        self.changed(node)
        if not node.is_away:
            self._dispatcher.resume(node, now_s)
        self._versions.has_changed = True

    def _suspend_away(self, *, is_awaited: bool) -> None:
        """
        Let others sample what stalled or barred rollouts hold, if there are others; silent ones' if it ``is_awaited``.

        A silent node is lost soon, and may only have been slow to answer; a stalled one keeps its leases for ever.
        """
        rollouts = self._nodes.rollouts()
        if not all(node.is_away for node in rollouts):
            for node in rollouts:
                if node.is_stalled or node.is_barred or (node.is_quiet and is_awaited):
                    self._dispatcher.suspend(node)


# ── roles without a node ───────────────────────────────────────────────────────────────────────
# Work that waits for a role without a connected node: reported once per episode, so that no run hangs silently.

PATIENCE_S = 60.0


class Wait(Struct, frozen=True):
    role: Role
    work: str
    """Work that waits for the role, in words: ``12 trajectories``."""
    there: str = ""
    """Clause about machines of the role that wait for others; empty if there is none."""

    def sentence(self, waited_s: float) -> str:
        if self.there:
            return (
                f"{self.work} have waited for {waited_s:.0f} s, but {self.there}: start the others, or look at their "
                f"logs"
            )
        return (
            f"{self.work} wait, but no {NEEDED[self.role]} has been connected for {waited_s:.0f} s: "
            f"start one, or look at its log if it was started"
        )


class AbsenceBook:
    """Time since which each role has been missing. A wait is reported after ``patience_s``."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._since_s: dict[Role, float] = {}
        self._reported: set[Role] = set()

    def overdue(self, waits: list[Wait], now_s: float) -> list[tuple[Wait, str]]:
        """Overdue waits not reported yet, with sentences. A role with none of the ``waits`` starts a new episode."""
        roles = {wait.role for wait in waits}
        self._since_s = {role: self._since_s.get(role, now_s) for role in roles}
        self._reported &= roles
        late = [wait for wait in waits if now_s - self._since_s[wait.role] >= self._patience_s]
        fresh = [wait for wait in late if wait.role not in self._reported]
        self._reported.update(wait.role for wait in fresh)
        return [(wait, wait.sentence(now_s - self._since_s[wait.role])) for wait in fresh]


def missing_roles(scheduler: "Scheduler") -> list[Role]:
    """Roles of which no node is connected."""
    return [role for role in NEEDED if not scheduler.nodes.with_role(role)]


def none_connected(roles: Iterable[Role]) -> str:
    """Clause about roles without a node: ``no trainer and no rollout is connected``; empty if there are none."""
    names = [NEEDED[role] for role in roles]
    return f"no {' and no '.join(names)} is connected" if names else ""


def waits(scheduler: "Scheduler") -> list[Wait]:
    """Work of all roles without a connected node."""
    there: dict[Role, str] = {"trainer": scheduler.machines.missing()}
    found = [Wait(role, _work(scheduler, role), there.get(role, "")) for role in missing_roles(scheduler)]
    return [wait for wait in found if wait.work]


def _work(scheduler: "Scheduler", role: Role) -> str:
    """Work that only nodes of ``role`` can do, in words; empty if there is none."""
    match role:
        case "trainer":
            return _trainer_work(scheduler)
        case "rollout":
            return "" if scheduler.settings.paused_by else _rollout_work(scheduler)
        case "spool":
            return f"the results of {len(rollouts)} rollouts" if (rollouts := scheduler.nodes.rollouts()) else ""
        case _:
            return f"{number} trajectories" if (number := scheduler.grading.num_waiting) else ""


def _trainer_work(scheduler: "Scheduler") -> str:
    if scheduler.transfers.live_version < 0:
        return f"{len(rollouts)} rollouts without weights" if (rollouts := scheduler.nodes.rollouts()) else ""
    if scheduler.window.num_open:
        return f"{scheduler.window.num_open} groups in the window"
    return "" if scheduler.is_trained else "the steps since the last checkpoint"


def _rollout_work(scheduler: "Scheduler") -> str:
    if scheduler.transfers.staged_version > scheduler.transfers.live_version:
        return f"the weights of version {scheduler.transfers.staged_version}"
    if scheduler.dispatcher.unleased:
        return f"{len(scheduler.dispatcher.unleased)} groups"
    return "" if scheduler.evaluation.is_finished else "the prompts of an evaluation"
