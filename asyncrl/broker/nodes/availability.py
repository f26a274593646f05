"""
Availability of nodes: which of them get work, and who does the work of the others.

    silent, stalled, barred ─▶ away: it gets no new work, and others sample, grade and evaluate what it has in hand
    heard, moving, admitted ─▶ back: it gets again what nobody has taken over

Silence and standstill are seen by `NodeBook`, faults by `FaultBook`; what follows from them is decided here.
"""

from collections.abc import Mapping

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
        self._versions.changed()

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
