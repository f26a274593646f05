"""
The broker's rules: messages and the time go in, messages, records and events come out. No socket, no clock, no await.

    prompts ─admit─▶ group ─lease─▶ rollout ─Stored─▶ grade ─Scored─▶ complete ─Take─▶ batch ─version live─▶ retired
             window          credits                credits                  fifo                    window

The broker, property tests, the simulation and `asyncrl plan` all run this object. Each subject is an object of its own
(window, leases, groups, grading, batches, spools, transfers, evaluation); the scheduler connects them. A message is
handled by one `rule` of the object that owns its subject, and then `Scheduler._advance` does all that has become
possible.

Messages that announce durable facts are sent with ``once_durable``: `Settled`, `Batch`, `Trim`, `Paused`,
`SettingsChanged`, `Shortened`, and no others.
"""

from collections.abc import Mapping, Sequence

from asyncrl.broker.failures import REPORTS, FailureBook, ProgressCheck
from asyncrl.broker.groups.admission import Window
from asyncrl.broker.groups.group import GroupBook
from asyncrl.broker.handlers import rule
from asyncrl.broker.leases.dispatcher import Dispatcher
from asyncrl.broker.leases.grading import GradeBook
from asyncrl.broker.leases.trajectories import Trajectories, VerdictLimits
from asyncrl.broker.ledger.records import GoalMet, SamplingPaused, SettingsSet
from asyncrl.broker.nodes.availability import WORKERS, AbsenceBook, Availability, waits
from asyncrl.broker.nodes.device_turns import DeviceTurnBook
from asyncrl.broker.nodes.faults import FaultBook
from asyncrl.broker.nodes.machines import Disbandment, MachineBook
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.nodes.spool_loss import SpoolLoss
from asyncrl.broker.nodes.spools import SpoolBook
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.settings import LiveSettings, Supervisors
from asyncrl.broker.training import TrainingGroups
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.broker.versions.transfers import MAX_FAILURES, TransferBook
from asyncrl.broker.versions.versions import Versions
from asyncrl.config.config import Config
from asyncrl.config.live import Value, value_of
from asyncrl.config.sections.run import goal_of
from asyncrl.data.prompts import PromptStream
from asyncrl.errors import BrokenInvariant
from asyncrl.messages.codec import Message
from asyncrl.messages.permit import Permits
from asyncrl.messages.reward import Scored
from asyncrl.messages.rollout import Failed, Offer, StartedOver
from asyncrl.messages.session import Beat, Draining, Hello, Ready
from asyncrl.messages.spool import Stored
from asyncrl.messages.supervisor import Paused, SettingsChanged
from asyncrl.messages.trainer import Commit, Shortened
from asyncrl.messages.trajectory import Prompt, Unit
from asyncrl.messages.words import Stage, Unenforced
from asyncrl.records.formatting import counted
from asyncrl.wire.permissions import refusal

OWN_FAULTS: tuple[Stage, ...] = ("environment", "reward")
"""Stages that fail for one trajectory, and not for the prompt that it shares with its group."""


class Scheduler:
    """
    All rules of one run; a `RunFailed` ends it.

    Args:
        broker_term: Higher than in any earlier life of the broker.
        held_out_rows: Dataset rows of the ``held_out`` prompts; without them a prompt's place counts.
        permits: Permits of the run, the same in every life of the broker.
    """

    def __init__(
        self,
        config: Config,
        prompts: PromptStream,
        held_out: Sequence[Prompt],
        broker_term: int,
        held_out_rows: Sequence[int] = (),
        *,
        permits: Permits = Permits(),  # noqa: B008  stateless
    ) -> None:
        schedule = config.schedule
        self.out = Outbox()
        """Output of all calls since it was drained."""
        self.nodes = NodeBook(config.broker)
        self.machines = MachineBook(config.trainer, self.nodes, self.out)
        self.spools = SpoolBook(config.broker.spool_ttl_s)
        self.turns = DeviceTurnBook(self.nodes, self.out, is_used=config.rollout.colocated)
        self.window = Window(schedule.window)
        self.groups = GroupBook()
        self.grading = GradeBook(self.groups if config.reward.group else None)
        self.transfers = TransferBook(
            config.weights.deadline_s,
            config.broker.notice_s / 2,
            swaps_at_once=schedule.partial_rollout is True,
            is_patient=config.weights.staging == "bucket",
        )
        if broker_term > 1:
            self.transfers.restore(-1)  # The ledger may lack the version that was offered last.
        self.evaluation = EvaluationBook(
            config.evaluation, held_out, final_version_of(config, config.run.steps), self.groups, held_out_rows
        )
        self.versions = Versions(
            self.transfers, self.evaluation, self.nodes, self.window, turns=self.turns, out=self.out
        )
        self.dispatcher = Dispatcher(
            config,
            self.groups,
            self.evaluation,
            self.spools,
            out=self.out,
            broker_term=broker_term,
            permits=permits,
        )
        self.failures = FailureBook()
        self.faults = FaultBook()
        self.training = TrainingGroups(
            config,
            prompts,
            self.groups,
            self.window,
            dispatcher=self.dispatcher,
            grading=self.grading,
            nodes=self.nodes,
            spools=self.spools,
            out=self.out,
            failures=self.failures,
            faults=self.faults,
        )
        self.spool_loss = SpoolLoss(
            self.spools,
            self.groups,
            training=self.training,
            dispatcher=self.dispatcher,
            grading=self.grading,
            nodes=self.nodes,
            out=self.out,
            ttl_s=config.broker.spool_ttl_s,
        )
        self._progress = ProgressCheck(config)
        self._verdict_limits = VerdictLimits(config)
        self._trajectories = Trajectories(
            config,
            self.groups,
            dispatcher=self.dispatcher,
            grading=self.grading,
            transfers=self.transfers,
            nodes=self.nodes,
            out=self.out,
            failures=self.failures,
            faults=self.faults,
        )
        self.settings = LiveSettings(config, self.training, self.evaluation)
        self._absence = AbsenceBook()
        self.supervisors = Supervisors(self.nodes, self.failures, self.out)
        self._availability = Availability(
            self.nodes,
            self.faults,
            {"rollout": self.dispatcher.credits, "reward": self._trajectories.credits},
            dispatcher=self.dispatcher,
            grading=self.grading,
            versions=self.versions,
            spools=self.spools,
            supervisors=self.supervisors,
            out=self.out,
        )
        self.rules = rule.table(self, self.training, self.versions, self.supervisors)
        """The handler of each message that has a rule; the others concern the shell alone."""
        self._goal = goal_of(config.run.stop_when) if config.run.stop_when else None
        self._unenforced: set[Unenforced] = set()
        """Forms of replies that nothing enforces, of which the run has been told."""
        self._num_judged = 0
        """Evaluations that were compared with the goal."""
        self.is_over = False
        """Set by the caller once the run ends: nobody joins again."""

    def _advance(self, now_s: float) -> None:
        """Do everything that has become possible. If nothing has, the cost does not depend on the number of nodes."""
        if self.faults.suspects:
            self._availability.judge(now_s)
        if self.versions.has_changed:
            self.versions.advance(now_s)
        if len(self.evaluation.results) > self._num_judged:
            self._judge_goal()
        if self.turns.advance(may_train=self.versions.are_at_rest, now_s=now_s):
            self.versions.advance(now_s)
        for group in self.evaluation.take_abandoned():
            self.grading.drop(group)
        self.machines.advance(now_s)
        live_version = self.transfers.live_version
        self.training.advance(live_version)
        # Also while it is paused, if the run ends: its trainer may need samples to the end of a version.
        if not self.settings.paused_by or self.is_over:
            self.dispatcher.grant(self.nodes, now_s)
        self._trajectories.grade(now_s)
        self.training.answer_take(live_version)
        self.spool_loss.tell()

    # ── what the shell calls ────────────────────────────────────────────────────────────────

    @property
    def config(self) -> Config:
        """Configuration with the settings as they are by now."""
        return self.settings.config

    @property
    def is_finished(self) -> bool:
        """True if everything is trained and evaluated."""
        return self.is_trained and self.evaluation.is_finished

    @property
    def is_trained(self) -> bool:
        """True if a checkpoint contains every step, and the last version is live."""
        is_committed = self.training.committed_step >= self.training.num_steps - 1
        return is_committed and self.transfers.live_version >= self.final_version

    @property
    def final_version(self) -> int:
        """Policy version of the weights after the last step."""
        return final_version_of(self.config, self.training.num_steps)

    @property
    def has_met_goal(self) -> bool:
        """True if the run ends before its last step, as ``run.stop_when`` asks."""
        return self.training.num_steps < self.config.run.steps

    def end_after(self, steps: int) -> None:
        """End the run after so many steps, now or when the record is replayed."""
        self.training.end_after(steps)
        self.evaluation.ends_at(self.final_version)
        self.versions.has_changed = True

    def _judge_goal(self) -> None:
        """End the run after the steps that are taken, if an evaluation meets ``run.stop_when``."""
        news = self.evaluation.results[self._num_judged :]
        self._num_judged += len(news)
        goal, schedule = self._goal, self.config.schedule
        met = next((result for result in news if goal and result.num_prompts and goal.is_met(result.by_name)), None)
        steps = final_version_of(self.config, self.training.batches.next_step) * schedule.steps_per_publish
        if goal is None or met is None or steps >= self.training.num_steps:
            return
        self.end_after(steps)
        version, asked = met.policy_version, self.config.run.stop_when
        self.out.record(GoalMet(asked, version, steps))
        cause = (
            f"v{version} has {goal.metric} {met.by_name[goal.metric]:g}, as run.stop_when = {asked!r} asks: the run "
            f"ends after {counted(steps, 'step')}"
        )
        self.out.event("run.goal_met", policy_version=version, steps=steps, cause=cause)
        self.supervisors.notice(cause)
        for trainer in self.nodes.with_role("trainer"):
            self._tell_end(trainer)

    def _tell_end(self, trainer: Node) -> None:
        if self.has_met_goal:
            self.out.send(trainer.peer, Shortened(self.training.num_steps), once_durable=True)

    def joined(self, peer: str, hello: Hello, now_s: float) -> Node:
        """A node was welcomed. Its earlier incarnations are lost."""
        earlier = self.nodes.named(hello.node)
        for forgetful in earlier:
            self._remove(forgetful, forgetful.replaced_by(hello), now_s, on_purpose=False)
        is_machine = hello.role == "trainer" and self.machines.are_used
        node = self.nodes.join(peer, hello, now_s, "machine" if is_machine else None)
        self.out.event("node.joined", node=node.name, role=node.role, incarnation=node.incarnation)
        node.is_barred = self.faults.is_barred(node.name)
        self.turns.joined(node)
        if node.role == "rollout":
            if hello.policy_version <= self.transfers.live_version:
                node.policy_version = node.received_version = hello.policy_version
            self.spools.assign(peer)
            self.dispatcher.adopt(node, hello.held, now_s)
            self.versions.adopted(node)
        elif node.role == "spool" and hello.spool:
            self.spool_loss.joined(hello.spool)
        elif node.role == "supervisor":
            self.supervisors.joined(node, self.settings.paused_by)
        elif node.role == "machine":
            self.machines.joined(node, now_s)
        if earlier or is_machine or hello.spool:
            self._advance(now_s)
        return node

    def departed(self, peer: str, cause: str, now_s: float, *, on_purpose: bool = False) -> None:
        """Give the work of a departed or lost node to others; raises `RunFailed` after too many failed transfers."""
        if node := self.nodes.get(peer):
            self._remove(node, cause, now_s, on_purpose=on_purpose)
            self._advance(now_s)

    def clock_jumped(self, seconds: float) -> None:
        """Extend all deadlines: the broker itself was paused, suspended or starved, and heard no node meanwhile."""
        self.nodes.excuse(seconds)
        self.dispatcher.leases.extend(seconds)
        self.grading.extend(seconds)
        self.transfers.extend(seconds)
        self.spools.extend(seconds)
        self.out.event("broker.slept", seconds=round(seconds, 2))

    def tick(self, now_s: float) -> list[Node]:
        """Apply time limits. Returns the nodes that are lost now, for the hub to forget. Raises as `departed`."""
        overdue = {node.peer: f"silent for {self.config.broker.node_ttl_s:g} s" for node in self.nodes.silent(now_s)}
        for peer in self.transfers.expired(now_s, self.versions.held):
            overdue.setdefault(peer, f"did not finish a weight transfer within {self.transfers.limit_s:g} s")
        for peer in (*self.transfers.given_up(), *self.versions.uploads.given_up()):
            overdue.setdefault(peer, f"could not receive the weights in {MAX_FAILURES} tries")
        lost = [node for peer in overdue if (node := self.nodes.get(peer))]
        for node in lost:
            self.departed(node.peer, overdue[node.peer], now_s)
        self._availability.tick(now_s, is_awaited=self.training.awaited_step is not None)
        self.dispatcher.expire(now_s)
        self._trajectories.take_back(now_s)
        self.spool_loss.tick(now_s, self.transfers.live_version)
        self.versions.has_changed = True
        self._advance(now_s)
        for wait, sentence in self._absence.overdue(waits(self), now_s):
            self.out.event("run.waiting", role=wait.role, cause=sentence)
        self.supervisors.tell_failures(now_s)
        return lost

    def set_paused(self, *, is_paused: bool, by: str, at_s: float, now_s: float) -> None:
        """
        Pause sampling, or let it go on, and tell every supervisor once that is durable.

        Args:
            by: Name of the operator.
            at_s: Unix time, for people.
        """
        if is_paused != bool(self.settings.paused_by):
            self.settings.pause(is_paused=is_paused, by=by)
            self.out.record(SamplingPaused(is_paused, by, at_s))
            self.out.event("sampling.paused" if is_paused else "sampling.resumed", by=by)
        self.supervisors.tell(Paused(is_paused, self.settings.paused_by or by))
        self._advance(now_s)

    def set_settings(self, values: Mapping[str, Value], *, by: str, at_s: float, now_s: float) -> None:
        """
        Change live settings, whose values were checked; tell supervisors once that is durable.

        ``by`` is the name of the operator, ``at_s`` Unix time, for people.
        """
        before = {key: value_of(self.config, key) for key in values}
        self.settings.apply(values, by)
        if values:
            self.out.record(SettingsSet(dict(values), by, at_s))
        for key, value in values.items():
            self.out.event("setting.changed", key=key, value=value, before=before[key], by=by)
        self.supervisors.tell(SettingsChanged(dict(values), by))
        self._advance(now_s)

    def refuses(self, peer: str, message: Message) -> bool:
        """
        True for a message that the peer's role may not send, or that cannot be true. It is counted and changes nothing.

        So is any message of a peer that did not say Hello.
        """
        if (node := self.nodes.get(peer)) is None:
            return True
        reason = refusal(node.role, message) or message.out_of_bounds()
        if not reason and type(message) in REPORTS:
            reason = self._progress.problem_of(
                message, next_step=self.training.batches.next_step, newest_version=self.transfers.newest_version
            )
        if reason:
            self.refuse(peer, message, reason)
        return bool(reason)

    def refuse(self, peer: str, message: Message, reason: str) -> None:
        """Count a message of a node that the caller refuses."""
        if node := self.nodes.get(peer):
            problem = f"{type(message).__name__} of {node.name}: {reason}"
            self.failures.count("message", problem)
            if node.role in WORKERS:
                self.faults.failed(node.name, node.role, problem)

    def handle(self, peer: str, message: Message, now_s: float) -> None:
        """
        Apply one message of a node that said Hello before.

        Raises:
            RunFailed: The transfer of one version failed too often, every group is dropped or filtered, a verdict lacks
                the metric of the filter, or the trainer asks for a batch that is gone or fails twice at a step.
        """
        node = self.nodes.heard(peer, now_s)
        if node is None:
            return
        if node.is_quiet:
            self._availability.heard(node, now_s)
        if (apply := self.rules.get(type(message))) is None:
            raise BrokenInvariant(f"{type(message).__name__} is for BrokerActor to handle, not for the scheduler")
        apply(message, node, now_s)
        if type(message) is Beat:
            return  # Half of all messages are beats, and nothing follows from them.
        self._availability.changed(node)
        self._advance(now_s)

    def admit(self, name: str, now_s: float) -> None:
        """Let a barred node in again, as an operator says."""
        self._availability.admit(name, now_s)
        self._advance(now_s)

    # ── rules: one message each ─────────────────────────────────────────────────────────────

    @rule
    def _beat(self, message: Beat, node: Node, now_s: float) -> None:
        node.beats(message, now_s)
        if node.role == "trainer":
            self.transfers.sent(message.buckets, now_s)
        self.dispatcher.leases.renew(node.peer, now_s)
        for name in set(message.unenforced) - self._unenforced:
            self._unenforced.add(name)
            self.out.event("gateway.not_enforced", node=node.name, field=name)

    @rule
    def _ready(self, message: Ready, node: Node, now_s: float) -> None:
        self.nodes.ready(node, message)
        if message.vocab_size and (node.role == "trainer" or not self._trajectories.vocab_size):
            self._trajectories.vocab_size = message.vocab_size
        self.versions.ready(node)
        if node.role == "trainer":
            self._tell_end(node)

    @rule
    def _draining(self, message: Draining, node: Node, now_s: float) -> None:
        node.is_draining = True
        self._remove_disbanded(self.machines.draining(node, now_s), now_s)

    @rule
    def _offer(self, message: Offer, node: Node, now_s: float) -> None:
        node.credit_limit = max(node.credit_limit, message.limit)

    @rule
    def _stored(self, message: Stored, node: Node, now_s: float) -> None:
        for unit, reason in self._trajectories.stored(message, node.name):
            self._give_up(unit, reason)
        self._trajectories.count_attempts(node.peer, now_s)

    @rule
    def _scored(self, message: Scored, node: Node, now_s: float) -> None:
        for items in self._trajectories.judged_together(message.items):
            failures = filter(None, map(self._verdict_limits.failure, items))
            if failed := next(failures, None) or self._trajectories.incomplete(items):
                self._fail(failed, node)
                continue
            for item in items:
                if (group := self._trajectories.rewarded(item, node.peer)) is None:
                    continue
                if group.split == "train":
                    self.training.rewarded(group)
                else:
                    self.versions.settle_held_out(item.unit, failed=False)
        self._trajectories.count_attempts(node.peer, now_s)

    @rule
    def _failed(self, message: Failed, node: Node, now_s: float) -> None:
        self._fail(message, node)
        self._trajectories.count_attempts(node.peer, now_s)

    @rule
    def _started_over(self, message: StartedOver, node: Node, now_s: float) -> None:
        self._trajectories.started_over(message, node.peer)
        self._trajectories.count_attempts(node.peer, now_s)

    @rule
    def _commit(self, message: Commit, node: Node, now_s: float) -> None:
        self.training.commit(message)
        if not self.is_trained:
            self._remove_disbanded(self.machines.committed(now_s), now_s)

    def _fail(self, message: Failed, node: Node) -> None:
        if not (reason := self._trajectories.failed(message, node.peer)):
            return
        group = self.groups.group(message.unit)
        is_own = message.stage in OWN_FAULTS and not message.is_of_group
        if group and group.split == "train" and is_own:
            self.training.fail(group, message.unit, reason)
        else:
            self._give_up(message.unit, reason)

    def _give_up(self, unit: Unit, reason: str) -> None:
        if unit.split == "held_out":
            self.versions.settle_held_out(unit, failed=True)
        elif group := self.groups.group(unit):
            self.training.give_up(group, reason)

    # ── loss ────────────────────────────────────────────────────────────────────────────────

    def _remove(self, node: Node, cause: str, now_s: float, *, on_purpose: bool) -> None:
        """Remove a node that is gone, and queue its work for others. A member of the trainer takes the others along."""
        self.nodes.leave(node.peer)
        num_reissued = self.dispatcher.revoke(node, "node_left" if on_purpose else "node_lost")
        self.out.event(
            "node.left" if on_purpose else "node.lost",
            node=node.name,
            role=node.role,
            incarnation=node.incarnation,
            cause=cause,
            trajectories_reissued=num_reissued,
        )
        self._trajectories.revoke(node.peer)
        self.turns.departed(node.peer, now_s)
        self.versions.departed(node)
        self.spools.release(node.peer)
        if node.role == "spool" and not self.is_finished:
            self.spool_loss.departed(node.name, now_s, is_over=self.is_over)
        elif node.role == "trainer":
            self.training.trainer_left()
        gone = f"{'left' if on_purpose else 'was lost'}: {cause}"
        self._remove_disbanded(self.machines.departed(node, gone, now_s, is_over=self.is_over), now_s)

    def _remove_disbanded(self, ended: Disbandment | None, now_s: float) -> None:
        """End the sessions of a group's members at once, so that none of them can take, commit or publish any more."""
        if ended:
            for node in ended.members:
                self._remove(node, ended.reason, now_s, on_purpose=True)


def final_version_of(config: Config, steps: int) -> int:
    """Policy version of the weights after so many steps, the last of a run."""
    return -(-steps // config.schedule.steps_per_publish)
