"""
The broker's rules: messages and the time go in, messages, records and events come out. No socket, no clock, no await.

    prompts ─admit─▶ group ─lease─▶ rollout ─Stored─▶ grade ─Scored─▶ complete ─Take─▶ batch ─version live─▶ retired
             window          credits                credits                  fifo                    window

The same object runs in the broker, in property tests, in a simulator, and in planning. Each rule lives in a book of
its own (window, leases, groups, grading, batches, publishing, evaluation); here they meet.

What must be durable before it is said goes out with ``after_commit``: `Settled`, `Batch`, and nothing else.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, assert_never

from msgspec import Struct

from asyncrl.broker.batches import BatchBook
from asyncrl.broker.evaluation import EvaluationBook
from asyncrl.broker.grading import GradeBook
from asyncrl.broker.groups import Group, Slot, State
from asyncrl.broker.leases import Lease as OpenLease
from asyncrl.broker.leases import LeaseBook
from asyncrl.broker.nodes import Node, NodeBook
from asyncrl.broker.publishing import PublishBook
from asyncrl.broker.records import (
    Admitted,
    AnyRecord,
    Committed,
    Dropped,
    Duplicate,
    FailedAttempt,
    Measured,
    Reissued,
    Result,
    Taken,
    Verdict,
    VersionLive,
)
from asyncrl.broker.window import Window
from asyncrl.config import Config
from asyncrl.data.prompts import PromptStream
from asyncrl.errors import BrokenInvariant
from asyncrl.messages import (
    Batch,
    Beat,
    Bye,
    Cancelled,
    Commit,
    Draining,
    Evaluated,
    Exited,
    Failed,
    Grade,
    Hello,
    Hold,
    Lease,
    Live,
    Message,
    Offer,
    Prompt,
    Published,
    Publishing,
    Ready,
    Release,
    Scored,
    Settled,
    Stepped,
    Stored,
    StoreGet,
    StoreSet,
    Take,
    ToBroker,
    TransferFailed,
    Transferred,
    Trim,
    Unit,
)


class Outgoing(Struct, frozen=True):
    """One message to one peer."""

    peer: str
    message: Message
    after_commit: bool = False
    """Send it only once every record made so far is on disk."""


class Event(Struct, frozen=True):
    """Something a person may want to know."""

    kind: str
    fields: dict[str, Any]


class Scheduler:
    """
    All the rules.

    Args:
        config: The run.
        prompts: Training prompts by group id.
        held_out: Prompts for evaluation.
        broker_epoch: Higher than in any earlier life of this run's broker.
    """

    def __init__(self, config: Config, prompts: PromptStream, held_out: Sequence[Prompt], broker_epoch: int) -> None:
        schedule = config.schedule
        self._config = config
        self._prompts = prompts
        self._next_group_id = 0
        self._still_needed = config.run.steps * schedule.groups_per_step
        """Groups to admit so that every step gets its batch; a dropped one is made up for."""
        self.final_version = -(-config.run.steps // schedule.steps_per_publish)
        self.window = Window(schedule.window)
        self.nodes = NodeBook(config.broker.node_ttl_s)
        self.leases = LeaseBook(broker_epoch, schedule.lease_s)
        self.groups: dict[int, Group] = {}
        self._unleased: deque[Group] = deque()
        self.grading = GradeBook()
        self.batches = BatchBook(schedule.groups_per_step, schedule.order)
        self.publishing = PublishBook(config.weights.deadline_s)
        self.evaluation = EvaluationBook(config.evaluation, held_out, self.final_version)
        self._wanted_step: tuple[int, str] | None = None
        self.committed_step = -1
        self.outbox: list[Outgoing] = []
        self.records: list[AnyRecord] = []
        self.events: list[Event] = []

    # ── what the shell calls ────────────────────────────────────────────────────────────────

    @property
    def is_finished(self) -> bool:
        """Every step is in a checkpoint, the last version is live, and nothing is left to evaluate."""
        return (
            self.committed_step >= self._config.run.steps - 1
            and self.publishing.live_version >= self.final_version
            and self.evaluation.is_finished
        )

    def joined(self, peer: str, hello: Hello, now_s: float) -> Node:
        """A node said Hello and was welcomed."""
        for earlier in self.nodes.earlier(hello):
            self.left(earlier.peer, "another start of it said Hello", now_s)
        node = self.nodes.join(peer, hello, now_s)
        self._event("node.joined", node=node.name, role=node.role, incarnation=node.incarnation)
        self._advance(now_s)
        return node

    def left(self, peer: str, cause: str, now_s: float) -> None:
        """A node is gone: what it held is given to others."""
        if (node := self.nodes.leave(peer)) is None:
            return
        revoked = self.leases.revoke(peer)
        self._event(
            "node.lost",
            node=node.name,
            role=node.role,
            incarnation=node.incarnation,
            cause=cause,
            leases_reissued=len(revoked),
        )
        for lease in revoked:
            self._lease_lost(lease, "node_lost")
        self.grading.revoke(peer)
        self.publishing.left(peer, node.name)
        if lost := self.evaluation.left(peer):
            self._event("eval.lost", node=node.name, policy_version=lost.policy_version)
            for group_id in lost.open:
                self.grading.drop(group_id, "held_out")
        self._advance(now_s)

    def tick(self, now_s: float) -> list[Node]:
        """Time passed. Returns nodes that are now lost; the caller makes the hub forget them."""
        lost = self.nodes.silent(now_s)
        for node in lost:
            self.left(node.peer, f"silent for {self._config.broker.node_ttl_s:g} s", now_s)
        for peer in self.publishing.expired(now_s):
            if late := self.nodes.get(peer):
                lost.append(late)
                self.left(peer, f"did not finish a weight transfer within {self._config.weights.deadline_s:g} s", now_s)
        for lease in self.leases.expire(now_s):
            self._event("lease.expired", group_id=lease.group_id, node=lease.node)
            self._lease_lost(lease, "expired")
        self._advance(now_s)
        return lost

    def handle(self, peer: str, message: ToBroker, now_s: float) -> None:
        """Take in one message of a node that said Hello before."""
        node = self.nodes.heard(peer, now_s)
        if node is None:
            return
        match message:
            case Beat():
                node.beat = message
                self.leases.renew(peer, now_s)
                return  # Beats decide nothing: half of all messages need not look at every rule.
            case Ready():
                node.is_ready = True
            case Draining():
                node.is_draining = True
            case Offer(limit=limit):
                node.credit_limit = max(node.credit_limit, limit)
            case Stored():
                self._stored(message)
            case Scored():
                self._scored(message)
            case Failed():
                self._failed(message)
            case Live():
                self._live(node, message)
            case Transferred(epoch=epoch, policy_version=version):
                node.received_version = max(node.received_version, version)
                self.publishing.reported(peer, epoch)
            case TransferFailed(epoch=epoch, reason=reason):
                self._event("transfer.failed", node=node.name, policy_version=message.policy_version, cause=reason)
                self.publishing.reported(peer, epoch, f"{node.name}: {reason}")
            case Take(step=step):
                self._wanted_step = (step, peer)
            case Commit():
                self._commit(message)
            case Publishing():
                self.publishing.stage(message)
            case Hello() | Bye() | StoreSet() | StoreGet() | Stepped() | Exited():
                raise BrokenInvariant(f"{type(message).__name__} is the shell's to handle")
            case _:
                assert_never(message)
        self._advance(now_s)

    def drain(self) -> tuple[list[Outgoing], list[AnyRecord], list[Event]]:
        """What came out since the last call."""
        out = (self.outbox, self.records, self.events)
        self.outbox, self.records, self.events = [], [], []
        return out

    # ── one message each ────────────────────────────────────────────────────────────────────

    def _stored(self, message: Stored) -> None:
        unit = message.unit
        slot = self._slot(unit)
        self._send(f"{message.node}.{message.incarnation}", Settled([unit]), after_commit=True)
        self.leases.settle(message.token, unit.index)
        if slot is None or slot.state in (State.STORED, State.SCORED):
            self.records.append(Duplicate(unit, message.token, message.summary.num_tokens))
            return
        slot.state, slot.ref, slot.summary = State.STORED, message.ref, message.summary
        self.records.append(Result(unit, message.token, message.ref, message.summary))
        self.grading.add(slot)

    def _scored(self, message: Scored) -> None:
        slot = self.grading.settle(message.unit)
        if slot is None:
            return  # A verdict that came twice, or on a group dropped meanwhile.
        slot.state, slot.reward, slot.metrics = State.SCORED, message.reward, message.metrics
        self.records.append(Verdict(message.unit, message.reward, message.metrics))
        if message.unit.split == "held_out":
            self._evaluated(self.evaluation.settle(message.unit.group_id, failed=False))
            return
        group = self.groups[message.unit.group_id]
        group.num_scored += 1
        if group.is_complete:
            self.batches.completed(group)

    def _failed(self, message: Failed) -> None:
        unit = message.unit
        slot = self._slot(unit)
        if message.stage == "reward":
            if self.grading.settle(unit) is None:
                return
        else:
            self.leases.settle(message.token, unit.index)
        if slot is None or (message.stage == "rollout" and (slot.state, slot.token) != (State.LEASED, message.token)):
            return
        slot.attempts += 1
        final = not message.retryable or slot.attempts >= self._config.schedule.max_attempts
        self.records.append(FailedAttempt(unit, message.stage, message.reason, slot.attempts, final))
        self._event(
            "unit.failed",
            split=unit.split,
            group_id=unit.group_id,
            index=unit.index,
            stage=message.stage,
            reason=message.reason,
            is_final=final,
        )
        if final:
            self._give_up(unit, f"{message.stage}: {message.reason}")
        elif message.stage == "reward":
            self.grading.add(slot)
        else:
            slot.state = State.MISSING
            self.records.append(Reissued(unit, message.token, "failed"))
            self._lease_again(unit)

    def _live(self, node: Node, message: Live) -> None:
        node.policy_version = max(node.policy_version, message.policy_version)

    def _commit(self, message: Commit) -> None:
        self.committed_step = max(self.committed_step, message.step)
        self.records.append(Committed(message.step, message.checkpoint))
        self._event("checkpoint.written", step=message.step, path=message.checkpoint)
        for group in self.batches.forget(message.step):
            self.groups.pop(group.group_id, None)
        needed = [slot.ref.segment for group in self.groups.values() for slot in group.slots if slot.ref]
        if needed:
            for spool in self.nodes.of("spool"):
                self._send(spool.peer, Trim(min(needed)))

    # ── rules that follow from any change ───────────────────────────────────────────────────

    def _advance(self, now_s: float) -> None:
        """Do everything that has become possible."""
        self._conclude_transfer()
        self._start_evaluation()
        self._start_transfer(now_s)
        self._admit()
        self._grant(now_s)
        self._assign_grading()
        self._answer_take()

    def _conclude_transfer(self) -> None:
        before = self.publishing.live_version
        ended = self.publishing.conclude(self.nodes.rollouts())
        if ended is None or self.publishing.live_version == before:
            return
        version = ended.message.policy_version
        self.window.live(ended.next_step)
        self.records.append(VersionLive(version, ended.next_step))
        self._event("version.live", policy_version=version)
        self.evaluation.version_live(version)
        if trainer := self.nodes.trainer():
            self._send(trainer.peer, Published(version))

    def _start_transfer(self, now_s: float) -> None:
        if started := self.publishing.start(self.nodes.trainer(), self.nodes.rollouts(), now_s):
            for peer in started.peers:
                self._send(peer, started.message)

    def _start_evaluation(self) -> None:
        version = self.publishing.live_version
        ready = [n for n in self.nodes.rollouts() if n.policy_version == version >= 0 and not n.is_held]
        if ready and self.evaluation.start(ready[0].peer, version):
            ready[0].is_held = True
            self._send(ready[0].peer, Hold(version))

    def _evaluated(self, result: Evaluated | None) -> None:
        if result is None:
            return
        for node in self.nodes.rollouts():
            if node.is_held:
                node.is_held = False
                self._send(node.peer, Release())
        self.records.append(Measured(result.policy_version, result.accuracy, result.num_prompts, result.metrics))
        self._event(
            "eval.finished",
            policy_version=result.policy_version,
            accuracy=result.accuracy,
            num_prompts=result.num_prompts,
            **result.metrics,
        )
        for supervisor in self.nodes.of("supervisor"):
            self._send(supervisor.peer, result)

    def _admit(self) -> None:
        version = self.publishing.live_version
        while version >= 0 and self.window.room and self._still_needed:
            draw = self._prompts.at(self._next_group_id)
            group = Group(draw.group_id, draw.prompt, self._config.schedule.group_size, min_version=version)
            self.window.admit(group.group_id)
            self._next_group_id += 1
            self._still_needed -= 1
            self.groups[group.group_id] = group
            self._unleased.append(group)
            self.batches.admitted(group)
            self.records.append(Admitted(draw.group_id, draw.epoch, draw.row, version))

    def _grant(self, now_s: float) -> None:
        if (ongoing := self.evaluation.ongoing) and (node := self.nodes.get(ongoing.peer)):
            while ongoing.waiting and node.credits > 0:
                self._lease(ongoing.waiting.popleft(), node, now_s)
        rollouts = self.nodes.rollouts()
        for _ in range(len(self._unleased)):
            group = self._unleased[0]
            num = len(group.indices(State.MISSING))  # Whole leases, so that a prompt is prefilled once.
            able = [n for n in rollouts if n.policy_version >= group.min_version and n.credits >= num]
            if not able:
                return
            self._unleased.popleft()
            self._lease(group, max(able, key=lambda n: n.credits), now_s)

    def _lease(self, group: Group, node: Node, now_s: float) -> None:
        indices = group.indices(State.MISSING)
        lease = self.leases.grant(node.peer, group.group_id, group.split, indices, now_s)
        node.granted += len(indices)
        for index in indices:
            group.slots[index].state = State.LEASED
            group.slots[index].token = lease.token
        self._send(node.peer, self._lease_message(group, lease))

    def _lease_message(self, group: Group, lease: OpenLease) -> Lease:
        config = self._config
        sampling = config.sampling.sampling()
        if group.split == "held_out":
            evaluation = config.evaluation
            sampling = type(sampling)(
                max_tokens=evaluation.max_tokens or sampling.max_tokens,
                temperature=evaluation.temperature,
                stop=sampling.stop,
            )
        return Lease(
            token=lease.token,
            group_id=group.group_id,
            indices=sorted(lease.open),
            split=group.split,
            prompt=group.prompt,
            sampling=sampling,
            seed=sampling_seed(config.run.seed, group.group_id, config.schedule.group_size),
            max_prompt_tokens=config.data.max_prompt_tokens,
            expires_in_s=config.schedule.lease_s,
        )

    def _assign_grading(self) -> None:
        for node, slot in self.grading.assign(self.nodes.of("reward")):
            group = self._group(slot.unit)
            if group is None or slot.ref is None:
                raise BrokenInvariant(f"{slot.unit} waits for a verdict but is not stored")
            slot.token = self.leases.next_token()
            self._send(node.peer, Grade(unit=slot.unit, token=slot.token, ref=slot.ref, prompt=group.prompt))

    def _answer_take(self) -> None:
        if self._wanted_step is None:
            return
        step, peer = self._wanted_step
        groups = self.batches.taken(step)
        if groups is None:
            groups = self.batches.form(step)
            if groups is None:
                return
            group_ids = [group.group_id for group in groups]
            self.window.consume(step, group_ids)
            self.records.append(Taken(step, group_ids))
        self._wanted_step = None
        samples = [slot.sample() for group in groups for slot in group.slots]
        self._send(peer, Batch(step, samples), after_commit=True)

    # ── loss ────────────────────────────────────────────────────────────────────────────────

    def _lease_lost(self, lease: OpenLease, cause: str) -> None:
        for index in sorted(lease.open):
            unit = Unit(lease.group_id, index, lease.split)
            slot = self._slot(unit)
            if slot and (slot.state, slot.token) == (State.LEASED, lease.token):
                slot.state = State.MISSING
                self.records.append(Reissued(unit, lease.token, cause))
                self._lease_again(unit)

    def _lease_again(self, unit: Unit) -> None:
        """Only the missing indices, and before fresh groups: oldest first."""
        group = self._group(unit)
        if group is None:
            return
        queue = self._unleased
        if unit.split == "held_out":
            if self.evaluation.ongoing is None:
                return
            queue = self.evaluation.ongoing.waiting
        if group not in queue:
            queue.appendleft(group)

    def _give_up(self, unit: Unit, reason: str) -> None:
        group = self._group(unit)
        if group is None:
            return
        self.grading.drop(unit.group_id, unit.split)
        if unit.split == "held_out":
            self._evaluated(self.evaluation.settle(unit.group_id, failed=True))
            return
        for lease in self.leases.cancel(unit.group_id, unit.split):
            self._send(lease.node, Cancelled([lease.token]))
        if group in self._unleased:
            self._unleased.remove(group)
        del self.groups[unit.group_id]
        self.batches.dropped(group)
        self.window.drop(unit.group_id)
        self._still_needed += 1
        self.records.append(Dropped(unit.group_id, reason, sum(group.lengths)))
        self._event("group.dropped", group_id=unit.group_id, reason=reason)

    # ── small things ────────────────────────────────────────────────────────────────────────

    def _group(self, unit: Unit) -> Group | None:
        find: Callable[[int], Group | None] = self.evaluation.group if unit.split == "held_out" else self.groups.get
        return find(unit.group_id)

    def _slot(self, unit: Unit) -> Slot | None:
        group = self._group(unit)
        return group.slots[unit.index] if group and 0 <= unit.index < len(group.slots) else None

    def _send(self, peer: str, message: Message, *, after_commit: bool = False) -> None:
        self.outbox.append(Outgoing(peer, message, after_commit))

    def _event(self, kind: str, **fields: Any) -> None:
        self.events.append(Event(kind, fields))


def sampling_seed(run_seed: int, group_id: int, group_size: int) -> int:
    """Seed of index 0 of a group; index i has ``+ i``. Distinct for every trajectory of a run, below 2**63."""
    return ((run_seed << 40) + group_id * group_size) & (2**63 - 1)
