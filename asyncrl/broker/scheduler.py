"""
The broker's rules: messages and the time go in, messages, records and events come out. No socket, no clock, no await.

    prompts ─admit─▶ group ─lease─▶ rollout ─Stored─▶ grade ─Scored─▶ complete ─Take─▶ batch ─version live─▶ retired
             window          credits                credits                  fifo                    window

The same object runs in the broker, in property tests, in a simulator, and in planning. Each rule lives in a book of
its own (window, leases, groups, grading, batches, publishing, evaluation); here they meet.

What must be durable before it is said goes out with ``after_commit``: `Settled`, `Batch`, `Trim`, and nothing else.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from asyncrl.broker.groups.admission import AdmissionBook
from asyncrl.broker.groups.batches import BatchBook
from asyncrl.broker.groups.drops import OVERLONG, DropBook
from asyncrl.broker.groups.filtering import ZERO_VARIANCE, GroupFilter
from asyncrl.broker.groups.group import Group, Slot, State
from asyncrl.broker.groups.max_staleness import StalenessBound, Stragglers
from asyncrl.broker.groups.window import Window
from asyncrl.broker.leases.credits import CreditBook
from asyncrl.broker.leases.dispatcher import Dispatcher
from asyncrl.broker.leases.grading import GradeBook
from asyncrl.broker.ledger.records import (
    AnyRecord,
    Committed,
    Dropped,
    Duplicate,
    FailedAttempt,
    Restarted,
    Result,
    Rewarded,
    Taken,
)
from asyncrl.broker.nodes.absence import AbsenceBook, waits
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.outbox import Event, Outbox, Outgoing
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.broker.versions.transfers import MAX_FAILURES, TransferBook
from asyncrl.broker.versions.versions import Versions
from asyncrl.config.sections import Config, Schedule
from asyncrl.data.prompts import PromptStream
from asyncrl.errors import BrokenInvariant, RunFailed
from asyncrl.messages import (
    Batch,
    Beat,
    Bye,
    Commit,
    Drain,
    Draining,
    Exited,
    Failed,
    Grade,
    GradeItem,
    Hello,
    Leased,
    Live,
    Offer,
    Prompt,
    Publishing,
    Ready,
    Role,
    Scored,
    ScoredItem,
    Settled,
    Stepped,
    Stored,
    StoredItem,
    StoreGet,
    StoreSet,
    Take,
    ToBroker,
    TransferFailed,
    Transferred,
    Trim,
    Unit,
)


class Scheduler:
    """
    All the rules.

    Args:
        config: The run.
        prompts: Training prompts by group id.
        held_out: Prompts for evaluation.
        broker_term: Higher than in any earlier life of this run's broker.
    """

    def __init__(self, config: Config, prompts: PromptStream, held_out: Sequence[Prompt], broker_term: int) -> None:
        schedule = config.schedule
        self._config = config
        num_needed = config.run.steps * schedule.groups_per_step
        self.admission = AdmissionBook(prompts, schedule.group_size, num_needed, config.greedy_per_group)
        self.final_version = -(-config.run.steps // schedule.steps_per_publish)
        self.window = Window(schedule.window)
        self.nodes = NodeBook(config.broker.notice_s, config.broker.node_ttl_s)
        self.groups: dict[int, Group] = {}
        self.grading = GradeBook()
        bound, self._stragglers = _max_staleness(schedule)
        self.batches = BatchBook(schedule.groups_per_step, schedule.order, bound)
        self.filtering = GroupFilter(schedule)
        self.transfers = TransferBook(config.weights.deadline_s, swaps_at_once=schedule.partial_rollout)
        self.evaluation = EvaluationBook(config.evaluation, held_out, self.final_version)
        self.out = Outbox()
        self.versions = Versions(self.transfers, self.evaluation, self.nodes, self.window, self.out)
        self.dispatcher = Dispatcher(config, self.evaluation, self._group, self.out, broker_term)
        self._credits: dict[Role, CreditBook] = {"rollout": self.dispatcher.credits, "reward": CreditBook()}
        self._absence = AbsenceBook()
        self._drops = DropBook(schedule.window)
        self._wanted_step: tuple[int, str] | None = None
        self.committed_step = -1

    # ── what the shell calls ────────────────────────────────────────────────────────────────

    @property
    def is_finished(self) -> bool:
        """There is nothing left to train or to evaluate."""
        return self.is_trained and self.evaluation.is_finished

    @property
    def is_trained(self) -> bool:
        """Every step is in a checkpoint, and the last version is live."""
        is_committed = self.committed_step >= self._config.run.steps - 1
        return is_committed and self.transfers.live_version >= self.final_version

    def joined(self, peer: str, hello: Hello, now_s: float) -> Node:
        """A node said Hello and was welcomed."""
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
        """
        A node is gone: what it held is given to others. Without a trainer the run waits for the next one.

        Args:
            cause: In words.
            on_purpose: It said Bye; otherwise it is lost.

        Raises:
            RunFailed: One version could not be published in many tries.
        """
        if node := self.nodes.get(peer):
            self._remove(node, cause, on_purpose=on_purpose)
            self._advance(now_s)

    def slept(self, seconds: float) -> None:
        """The broker itself stood still: paused, suspended, or on a machine without time for it. Nobody is to blame."""
        self.nodes.excuse(seconds)
        self.dispatcher.leases.extend(seconds)
        self.transfers.extend(seconds)
        self.out.event("broker.slept", seconds=round(seconds, 2))

    def tick(self, now_s: float) -> list[Node]:
        """
        Time passed. Returns nodes that are now lost; the caller makes the hub forget them.

        Raises:
            RunFailed: One version could not be published in many tries.
        """
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
        self.versions.moved()
        self._advance(now_s)
        for wait, sentence in self._absence.overdue(waits(self), now_s):
            self.out.event("run.waiting", role=wait.role, cause=sentence)
        return lost

    def handle(self, peer: str, message: ToBroker, now_s: float) -> None:
        """
        Take in one message of a node that said Hello before.

        Raises:
            RunFailed: One version could not be published in many tries, every group is dropped or filtered, a verdict
                lacks the metric of the filter, or the trainer asks for a batch that is gone.
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
                return  # Beats decide nothing: half of all messages need not look at every rule.
            case Ready() | Draining() | Offer():
                self._said_of_itself(node, message)
            case Stored() | Scored() | Failed():
                self._trajectory(message)
            case Transferred() | TransferFailed() | Live():
                self.versions.reported(node, message)
                self._credits_changed(node)
            case Take() | Commit() | Publishing():
                self._trained(node, message)
            case Hello() | Bye() | Drain() | StoreSet() | StoreGet() | Stepped() | Exited():
                raise BrokenInvariant(f"{type(message).__name__} is the shell's to handle")
            case _:
                assert_never(message)
        self._advance(now_s)

    def drain(self) -> tuple[list[Outgoing], list[AnyRecord], list[Event]]:
        """What came out since the last call."""
        return self.out.drain()

    # ── what a record tells of: when it happens, and when it is replayed ────────────────────────

    def opened(self, group: Group) -> None:
        """A group was admitted."""
        self.window.admit(group.group_id)
        self.groups[group.group_id] = group
        self.batches.admitted(group)

    def scored(self, group: Group) -> None:
        """One more trajectory of a group has its verdict."""
        group.num_scored += 1
        if group.is_complete:
            self.batches.completed(group)
            self._drops.completed()

    def restarted(self, group: Group, policy_version: int) -> None:
        """A group begins anew at this version: nothing sampled of it counts."""
        self.batches.dropped(group)
        group.begin_anew(policy_version)
        self.batches.admitted(group)

    def dropped(self, group: Group, reason: str) -> None:
        """A group will not be trained on."""
        del self.groups[group.group_id]
        self.batches.dropped(group)
        self.window.drop(group.group_id)
        self.admission.dropped()
        self.filtering.dropped(reason, self.batches.next_step)

    def committed(self, step: int) -> list[Group]:
        """
        A checkpoint contains every step up to ``step``. Returns the groups that nobody will ask for again.

        Those are of the checkpoint before: should the newest turn out to be damaged, the trainer begins at that one.
        """
        self.filtering.forget(self.committed_step)
        done = self.batches.forget(self.committed_step)
        self.committed_step = step
        for group in done:
            del self.groups[group.group_id]
        return done

    # ── one message each ────────────────────────────────────────────────────────────────────

    def _said_of_itself(self, node: Node, message: Ready | Draining | Offer) -> None:
        match message:
            case Ready():
                node.is_ready, node.ranks = True, message.ranks
                self.versions.ready(node)
            case Draining():
                node.is_draining = True
            case Offer(limit=limit):
                node.credit_limit = max(node.credit_limit, limit)
        self._credits_changed(node)

    def _trajectory(self, message: Stored | Scored | Failed) -> None:
        match message:
            case Stored():
                self._stored(message)
            case Scored(items=items):
                for item in items:
                    self._verdict(item)
            case Failed():
                self._failed(message)

    def _trained(self, node: Node, message: Take | Commit | Publishing) -> None:
        match message:
            case Take(step=step):
                self._wanted_step = (step, node.peer)
            case Commit():
                self._commit(message)
            case Publishing():
                self.versions.offered(node, message)

    def _stored(self, message: Stored) -> None:
        unfinished = [item for item in message.items if item.summary.finish_reason == "unfinished"]
        finished = [item for item in message.items if item.summary.finish_reason != "unfinished"]
        settled = Settled(_leased(finished), _leased(unfinished))
        self.out.send(f"{message.node}.{message.incarnation}", settled, after_commit=True)
        for item in unfinished:
            self.dispatcher.progressed(item)
        for item in finished:
            self._result(item)

    def _result(self, item: StoredItem) -> None:
        unit = item.unit
        slot = self.dispatcher.slot(unit)
        self.dispatcher.leases.settle(item.lease_id, unit.index)
        if slot is None or slot.state not in (State.MISSING, State.LEASED) or self.dispatcher.is_outlived(item):
            self.out.record(Duplicate(unit, item.lease_id, item.summary.num_tokens))
            return
        slot.store(item.ref, item.summary)
        self.out.record(Result(unit, item.lease_id, item.ref, item.summary, self._num_restarts(unit)))
        self.grading.add(slot)

    def _verdict(self, item: ScoredItem) -> None:
        slot = self._graded(item.unit, item.lease_id)
        if slot is None:
            return
        slot.judge(item.reward, item.metrics, item.answer)
        self.out.record(Rewarded(item.unit, item.reward, item.metrics, self._num_restarts(item.unit)))
        if item.unit.split == "held_out":
            self.versions.settle_held_out(item.unit, failed=False)
            return
        group = self.groups[item.unit.group_id]
        self.scored(group)
        if group.is_complete:
            self.filtering.completed(group)

    def _failed(self, message: Failed) -> None:
        unit = message.unit
        slot = self.dispatcher.slot(unit)
        if message.stage == "reward":
            if self._graded(unit, message.lease_id) is None:
                return
        else:
            self.dispatcher.leases.settle(message.lease_id, unit.index)
        if slot is None or (message.stage == "rollout" and not slot.is_leased_by(message.lease_id)):
            return
        slot.attempts += 1
        final = not message.retryable or slot.attempts >= self._config.schedule.max_attempts
        self.out.record(FailedAttempt(unit, message.stage, message.reason, slot.attempts, final))
        self.out.event(
            "unit.failed",
            split=unit.split,
            group_id=unit.group_id,
            index=unit.index,
            stage=message.stage,
            reason=message.reason,
            is_final=final,
        )
        if final:
            is_filtered = message.is_overlong and self._config.data.filter_overlong_prompts
            self._give_up(unit, OVERLONG if is_filtered else f"{message.stage}: {message.reason}")
        elif message.stage == "reward":
            self.grading.add(slot)
        else:
            self.dispatcher.failed(slot, message.lease_id)

    def _commit(self, message: Commit) -> None:
        if message.step <= self.committed_step:
            return  # A resumed trainer says again what it begins from.
        self.out.record(Committed(message.step, message.checkpoint))
        self.out.event("checkpoint.written", step=message.step, path=message.checkpoint)
        done = self.committed(message.step)
        held_out = self.evaluation.ongoing.open.values() if self.evaluation.ongoing else []
        if done:
            needed = _segments([*self.groups.values(), *held_out])
            for spool in self.nodes.of("spool"):
                trim = Trim(min(needed, default=max(_segments(done))))
                self.out.send(spool.peer, trim, after_commit=True)

    # ── rules that follow from any change ───────────────────────────────────────────────────

    def _advance(self, now_s: float) -> None:
        """Do everything that has become possible. Where nothing has, this costs the same with any number of nodes."""
        self.versions.advance(now_s)
        self._filter()
        self._restart_stragglers()
        self._admit()
        self.dispatcher.grant(self.nodes, now_s)
        self._assign_grading()
        self._answer_take()

    def _filter(self) -> None:
        for group in self.filtering.filtered():
            self._end(group, ZERO_VARIANCE)
            self.filtering.check_patience(group)

    def _restart_stragglers(self) -> None:
        if self._stragglers is None:
            return
        version = self.transfers.live_version
        for group in self._stragglers.overdue(self.batches, self.batches.next_step, version):
            thrown_away = group.lengths
            self.grading.drop(group)
            self.dispatcher.cancel(group)
            self.restarted(group, version)
            self.dispatcher.wanted(group)
            self.out.record(Restarted(group.group_id, version, thrown_away))
            self.out.event(
                "group.restarted", group_id=group.group_id, policy_version=version, tokens_thrown_away=sum(thrown_away)
            )

    def _admit(self) -> None:
        version = self.transfers.live_version
        while version >= 0 and self.window.room and self.admission.num_needed:
            group, record = self.admission.admit(version)
            self.opened(group)
            self.dispatcher.wanted(group)
            self.out.record(record)

    def _assign_grading(self) -> None:
        while self.grading.is_waiting and (node := self._credits["reward"].most(1)):
            slots = self.grading.assign(node.peer, node.credits)
            group = self._group(slots[0].unit)
            if group is None:
                raise BrokenInvariant(f"{slots[0].unit} waits for a verdict, but its group is gone")
            node.granted += len(slots)
            self._credits_changed(node)
            self.out.send(node.peer, Grade(group.prompt, [self._grade_item(slot) for slot in slots]))

    def _grade_item(self, slot: Slot) -> GradeItem:
        if slot.ref is None:
            raise BrokenInvariant(f"{slot.unit} waits for a verdict but is not stored")
        slot.lease_id = self.dispatcher.leases.next_id()
        return GradeItem(slot.unit, slot.lease_id, slot.ref)

    def _answer_take(self) -> None:
        if self._wanted_step is None:
            return
        step, peer = self._wanted_step
        groups = self.batches.taken(step)
        if groups is None:
            self._refuse_if_forgotten(step)
            if self._stragglers and not self._stragglers.may_form(step, self.transfers.live_version):
                return
            groups = self.batches.form(step)
            if groups is None:
                return
            group_ids = [group.group_id for group in groups]
            self.window.consume(step, group_ids)
            self.out.record(Taken(step, group_ids))
        self._wanted_step = None
        samples = [slot.sample() for group in groups for slot in group.slots]
        self.out.send(peer, Batch(step, samples), after_commit=True)

    def _refuse_if_forgotten(self, step: int) -> None:
        if step < self.batches.next_step:
            self._wanted_step = None
            raise RunFailed(
                f"the trainer asks for step {step}, whose payloads are gone because two checkpoints contain it: it has "
                f"to begin at one of the two newest, and step {self.committed_step} is in the newest"
            )

    # ── loss ────────────────────────────────────────────────────────────────────────────────

    def _remove(self, node: Node, cause: str, *, on_purpose: bool) -> None:
        """A node is no longer there: everything it had in hand is taken from it."""
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
        self._credits_changed(node)
        self.grading.revoke(node.peer)
        for group in self.versions.left(node):
            self.grading.drop(group)
        if node.role == "trainer":
            self._wanted_step = None

    def _give_up(self, unit: Unit, reason: str) -> None:
        group = self._group(unit)
        if group is None:
            return
        if unit.split == "held_out":
            self.versions.settle_held_out(unit, failed=True)
            return
        self.grading.drop(group)
        self.dispatcher.cancel(group)
        self._end(group, reason)
        self._drops.dropped(reason)

    def _end(self, group: Group, reason: str) -> None:
        """It will not be trained on."""
        self.dropped(group, reason)
        self.out.record(Dropped(group.group_id, reason, sum(group.lengths)))
        self.out.event("group.dropped", group_id=group.group_id, reason=reason)

    # ── small things ────────────────────────────────────────────────────────────────────────

    def _credits_changed(self, node: Node) -> None:
        if (book := self._credits.get(node.role)) is None:
            return
        if self.nodes.get(node.peer) is node:
            book.update(node)
        else:
            book.remove(node.peer)

    def _group(self, unit: Unit) -> Group | None:
        find: Callable[[int], Group | None] = self.evaluation.group if unit.split == "held_out" else self.groups.get
        return find(unit.group_id)

    def _num_restarts(self, unit: Unit) -> int:
        group = self._group(unit)
        return group.num_restarts if group else 0

    def _graded(self, unit: Unit, lease_id: int) -> Slot | None:
        """What a verdict or its failure is on; None if it came twice, or on a trajectory not wanted any more."""
        slot = self.dispatcher.slot(unit)
        return self.grading.settle(unit) if slot and slot.lease_id == lease_id else None


def _max_staleness(schedule: Schedule) -> tuple[StalenessBound | None, Stragglers | None]:
    """What keeps groups from being too old when they are trained on: taking them in time, or sampling them anew."""
    if schedule.max_staleness is None or schedule.on_straggler == "train":
        return None, None
    bound = StalenessBound(schedule.max_staleness, schedule.groups_per_step, schedule.steps_per_publish)
    return (bound, None) if schedule.on_straggler == "wait" else (None, Stragglers(bound))


def _leased(items: Iterable[StoredItem]) -> list[Leased]:
    """Which trajectories these are, for the node that sent them."""
    return [Leased(item.unit, item.lease_id) for item in items]


def _segments(groups: Iterable[Group]) -> list[int]:
    """Where their payloads are."""
    return [slot.ref.segment for group in groups for slot in group.slots if slot.ref]
