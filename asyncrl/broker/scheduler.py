"""
The broker's rules: messages and the time go in, messages, records and events come out. No socket, no clock, no await.

    prompts ─admit─▶ group ─lease─▶ rollout ─Stored─▶ grade ─Scored─▶ complete ─Take─▶ batch ─version live─▶ retired
             window          credits                credits                  fifo                    window

The broker, property tests, the simulation and `asyncrl plan` all run this object. Each rule is a book of its own
(window, leases, groups, grading, batches, transfers, evaluation); the scheduler connects them.

Messages that announce durable facts are sent with ``once_durable``: `Settled`, `Batch`, `Trim`, and no others.
"""

from collections.abc import Sequence
from typing import assert_never

from asyncrl.broker.absence import AbsenceBook, waits
from asyncrl.broker.groups.book import GroupBook
from asyncrl.broker.groups.group import Group
from asyncrl.broker.groups.window import Window
from asyncrl.broker.leases.credits import CreditBook
from asyncrl.broker.leases.dispatcher import Dispatcher
from asyncrl.broker.leases.grading import GradeBook
from asyncrl.broker.leases.trajectories import Trajectories
from asyncrl.broker.ledger.records import AnyRecord
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.outbox import Event, Outbox, Outgoing
from asyncrl.broker.training import TrainingGroups
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.broker.versions.transfers import MAX_FAILURES, TransferBook
from asyncrl.broker.versions.versions import Versions
from asyncrl.config.sections import Config
from asyncrl.data.prompts import PromptStream
from asyncrl.errors import BrokenInvariant
from asyncrl.messages import (
    Beat,
    Bye,
    Commit,
    Drain,
    Draining,
    Exited,
    Failed,
    Hello,
    Live,
    Offer,
    Prompt,
    Publishing,
    Ready,
    Role,
    Scored,
    Stepped,
    Stored,
    StoreGet,
    StoreSet,
    Take,
    ToBroker,
    TransferFailed,
    Transferred,
    Unit,
)


class Scheduler:
    """All rules of one run; a `RunFailed` ends it. ``broker_term`` is higher than in any earlier life of the broker."""

    def __init__(self, config: Config, prompts: PromptStream, held_out: Sequence[Prompt], broker_term: int) -> None:
        schedule = config.schedule
        self._config = config
        self.final_version = -(-config.run.steps // schedule.steps_per_publish)
        self.out = Outbox()
        self.nodes = NodeBook(config.broker.notice_s, config.broker.node_ttl_s)
        self.window = Window(schedule.window)
        self.groups = GroupBook()
        self.grading = GradeBook()
        self.transfers = TransferBook(config.weights.deadline_s, swaps_at_once=schedule.partial_rollout)
        self.evaluation = EvaluationBook(config.evaluation, held_out, self.final_version, self.groups)
        self.versions = Versions(self.transfers, self.evaluation, self.nodes, self.window, self.out)
        self.dispatcher = Dispatcher(config, self.groups, self.evaluation, self.out, broker_term)
        self.training = TrainingGroups(
            config,
            prompts,
            self.groups,
            self.window,
            dispatcher=self.dispatcher,
            grading=self.grading,
            nodes=self.nodes,
            out=self.out,
        )
        self._trajectories = Trajectories(config, self.groups, self.dispatcher, self.grading, self.out)
        self._credits: dict[Role, CreditBook] = {
            "rollout": self.dispatcher.credits,
            "reward": self._trajectories.credits,
        }
        self._absence = AbsenceBook()

    # ── what the shell calls ────────────────────────────────────────────────────────────────

    @property
    def is_finished(self) -> bool:
        """True if everything is trained and evaluated."""
        return self.is_trained and self.evaluation.is_finished

    @property
    def is_trained(self) -> bool:
        """True if a checkpoint contains every step, and the last version is live."""
        is_committed = self.training.committed_step >= self._config.run.steps - 1
        return is_committed and self.transfers.live_version >= self.final_version

    def joined(self, peer: str, hello: Hello, now_s: float) -> Node:
        """A node was welcomed. Its earlier incarnations are lost."""
        earlier = self.nodes.earlier(hello)
        for forgetful in earlier:
            self._remove(forgetful, "another start of it said Hello", on_purpose=False)
        node = self.nodes.join(peer, hello, now_s)
        self.out.event("node.joined", node=node.name, role=node.role, incarnation=node.incarnation)
        if node.role == "rollout":
            if hello.policy_version <= self.transfers.live_version:
                node.policy_version = node.received_version = hello.policy_version
            self.dispatcher.adopt(node, hello.held, now_s)
        if earlier:
            self._advance(now_s)
        return node

    def left(self, peer: str, cause: str, now_s: float, *, on_purpose: bool = False) -> None:
        """Give the work of a departed or lost node to others; raises `RunFailed` after too many failed transfers."""
        if node := self.nodes.get(peer):
            self._remove(node, cause, on_purpose=on_purpose)
            self._advance(now_s)

    def slept(self, seconds: float) -> None:
        """Extend all deadlines: the broker itself was paused, suspended or starved, and heard no node meanwhile."""
        self.nodes.excuse(seconds)
        self.dispatcher.leases.extend(seconds)
        self.transfers.extend(seconds)
        self.out.event("broker.slept", seconds=round(seconds, 2))

    def tick(self, now_s: float) -> list[Node]:
        """Apply time limits. Returns the nodes that are lost now, for the hub to forget. Raises as `left`."""
        overdue = {node.peer: f"silent for {self._config.broker.node_ttl_s:g} s" for node in self.nodes.silent(now_s)}
        for peer in self.transfers.expired(now_s, self.versions.held):
            overdue.setdefault(peer, f"did not finish a weight transfer within {self.transfers.limit_s:g} s")
        for peer in self.transfers.given_up():
            overdue.setdefault(peer, f"could not receive the weights in {MAX_FAILURES} tries")
        lost = [node for peer in overdue if (node := self.nodes.get(peer))]
        for node in lost:
            self.left(node.peer, overdue[node.peer], now_s)
        for node in self.nodes.falling_quiet(now_s):
            self.out.event("node.quiet", node=node.name, seconds=round(now_s - node.heard_s, 2))
            self._credits_changed(node)
        self.dispatcher.expire(now_s)
        self.versions.changed()
        self._advance(now_s)
        for wait, sentence in self._absence.overdue(waits(self), now_s):
            self.out.event("run.waiting", role=wait.role, cause=sentence)
        return lost

    def handle(self, peer: str, message: ToBroker, now_s: float) -> None:
        """
        Apply one message of a node that said Hello before.

        Raises:
            RunFailed: The transfer of one version failed too often, every group is dropped or filtered, a verdict lacks
                the metric of the filter, or the trainer asks for a batch that is gone.
        """
        node = self.nodes.heard(peer, now_s)
        if node is None:
            return
        if node.is_quiet:
            node.is_quiet = False
            self.out.event("node.heard", node=node.name)
            self._credits_changed(node)
        match message:
            case Beat():
                node.beat = message
                self.dispatcher.leases.renew(peer, now_s)
                return  # Half of all messages are beats, and no rule follows from them.
            case Ready() | Draining() | Offer():
                self._handle_node(node, message)
            case Stored() | Scored() | Failed():
                self._handle_trajectory(message)
            case Transferred() | TransferFailed() | Live():
                self.versions.reported(node, message)
                self._credits_changed(node)
            case Take(step=step):
                self.training.take(step, peer)
            case Commit():
                self.training.commit(message)
            case Publishing():
                self.versions.offered(node, message)
            case Hello() | Bye() | Drain() | StoreSet() | StoreGet() | Stepped() | Exited():
                raise BrokenInvariant(f"{type(message).__name__} is for BrokerActor to handle, not for the scheduler")
            case _:
                assert_never(message)
        self._advance(now_s)

    def drain(self) -> tuple[list[Outgoing], list[AnyRecord], list[Event]]:
        """Output of all calls since the last drain."""
        return self.out.drain()

    # ── one message each ────────────────────────────────────────────────────────────────────

    def _handle_node(self, node: Node, message: Ready | Draining | Offer) -> None:
        match message:
            case Ready():
                node.is_ready, node.ranks = True, message.ranks
                self.versions.ready(node)
            case Draining():
                node.is_draining = True
            case Offer(limit=limit):
                node.credit_limit = max(node.credit_limit, limit)
        self._credits_changed(node)

    def _handle_trajectory(self, message: Stored | Scored | Failed) -> None:
        match message:
            case Stored():
                self._trajectories.stored(message)
            case Scored(items=items):
                for item in items:
                    if group := self._trajectories.rewarded(item):
                        self._rewarded(group, item.unit)
            case Failed():
                if reason := self._trajectories.failed(message):
                    self._give_up(message.unit, reason)

    def _rewarded(self, group: Group, unit: Unit) -> None:
        if group.split == "held_out":
            self.versions.settle_held_out(unit, failed=False)
        else:
            self.training.rewarded(group)

    def _give_up(self, unit: Unit, reason: str) -> None:
        if unit.split == "held_out":
            self.versions.settle_held_out(unit, failed=True)
        elif group := self.groups.group(unit):
            self.training.give_up(group, reason)

    # ── rules that follow from any change ───────────────────────────────────────────────────

    def _advance(self, now_s: float) -> None:
        """Do everything that has become possible. If nothing has, the cost does not depend on the number of nodes."""
        self.versions.advance(now_s)
        live_version = self.transfers.live_version
        self.training.advance(live_version)
        self.dispatcher.grant(self.nodes, now_s)
        self._trajectories.grade()
        self.training.answer_take(live_version)

    # ── loss ────────────────────────────────────────────────────────────────────────────────

    def _remove(self, node: Node, cause: str, *, on_purpose: bool) -> None:
        """Remove a node that is gone, and queue its work for others."""
        self.nodes.leave(node.peer)
        how = "left" if on_purpose else "lost"
        num_leases = self.dispatcher.revoke(node, f"node_{how}")
        self.out.event(
            f"node.{how}",
            node=node.name,
            role=node.role,
            incarnation=node.incarnation,
            cause=cause,
            leases_reissued=num_leases,
        )
        self._trajectories.revoke(node.peer)
        for group in self.versions.left(node):
            self.grading.drop(group)
        if node.role == "trainer":
            self.training.trainer_left()

    def _credits_changed(self, node: Node) -> None:
        if book := self._credits.get(node.role):
            book.update(node)
