"""
Training groups from admission to the checkpoint that contains them.

    admitted ─▶ leased, graded ─▶ complete ─▶ taken by a step ─▶ committed
       ▲            │                │               └─▶ untrained: the trainer left it out of the step
       │            │                └─▶ filtered: dropped, and one more admitted
       ├─ too old ──┘                    failed for good: the same, unless it goes on without the trajectory
"""

from collections.abc import Iterable

from asyncrl.broker.failures import FailureBook, StepFailures
from asyncrl.broker.groups.admission import AdmissionBook, Retirement, Window
from asyncrl.broker.groups.batches import BatchBook, StalenessBound, Stragglers
from asyncrl.broker.groups.filtering import OVERLONG, ZERO_VARIANCE, DropLimit, GroupFilter, first_needed
from asyncrl.broker.groups.group import Group, GroupBook, Slot, SlotState
from asyncrl.broker.handlers import rule
from asyncrl.broker.leases.dispatcher import Dispatcher
from asyncrl.broker.leases.grading import GradeBook
from asyncrl.broker.ledger.records import Committed, Dropped, FailedAttempt, LeftOut, Restarted, Taken, Untrained
from asyncrl.broker.nodes.faults import FaultBook
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.nodes.spools import SpoolBook
from asyncrl.broker.outbox import Outbox
from asyncrl.config.config import Config
from asyncrl.config.sections.schedule import Schedule
from asyncrl.data.prompts import PromptStream
from asyncrl.errors import RunFailed
from asyncrl.messages.spool import Trim
from asyncrl.messages.trainer import Batch, Commit, Refusal, StepFailed, Stepped, Take
from asyncrl.messages.trajectory import Unit
from asyncrl.records.formatting import nth, ordinal


class TrainingGroups:
    """Admits, restarts, drops and batches training groups, and tells spools which payloads are no longer needed."""

    def __init__(
        self,
        config: Config,
        prompts: PromptStream,
        groups: GroupBook,
        window: Window,
        *,
        dispatcher: Dispatcher,
        grading: GradeBook,
        nodes: NodeBook,
        spools: SpoolBook,
        out: Outbox,
        failures: FailureBook,
        faults: FaultBook,
    ) -> None:
        schedule = config.schedule
        self.num_steps = config.run.steps
        """Steps of the run: those of the configuration, unless it has met ``run.stop_when``."""
        num_needed = self.num_steps * schedule.groups_per_step
        bound, self._stragglers = _max_staleness(schedule)
        self._groups = groups
        self._window = window
        self._groups_per_step = schedule.groups_per_step
        self._dispatcher = dispatcher
        self._grading = grading
        self._nodes = nodes
        self._spools = spools
        self._out = out
        self._failures = failures
        self._faults = faults
        self._retirement = Retirement(config.data.retire_at, prompts.num_rows) if config.data.retire_at else None
        self.admission = AdmissionBook(
            prompts, schedule.group_size, num_needed, config.greedy_per_group, retirement=self._retirement
        )
        self.batches = BatchBook(schedule.groups_per_step, schedule.reach, bound, lr=config.trainer.lr)
        self.filtering = GroupFilter(schedule, config.environment.seats)
        self._drops = DropLimit(schedule.window)
        self._least_group = config.least_group
        self._skipped_steps = frozenset(map(ordinal, config.run.skip_steps))
        self._step_failures = StepFailures()
        self._wanted_step: tuple[int, str] | None = None
        """Step of the unanswered `Take`, and the trainer's peer."""
        self._first_take: tuple[int, str] | None = None
        """Step of the first `Take` of the newest trainer, and its peer."""
        self.committed_step = -1
        self.num_failed = 0
        """Groups dropped because a trajectory failed for good."""

    # ── changes that a record describes: made when it happens, and when it is replayed ──────────

    def resize(self, window: int) -> None:
        """Let ``window`` groups be open from now on, and as many more fail in a row."""
        self._window.resize(window)
        self._drops.window = self.filtering.window = window

    def end_after(self, steps: int) -> None:
        """Train so many steps, not more: all that are taken are among them."""
        self.admission.no_longer_needed((self.num_steps - steps) * self._groups_per_step)
        self.num_steps = steps
        if self._wanted_step and self._wanted_step[0] >= steps:
            self._wanted_step = None

    def opened(self, group: Group) -> None:
        self._window.admit(group.group_id)
        self._groups.add(group)
        self.batches.admitted(group)

    def scored(self, group: Group) -> bool:
        """A trajectory of the group has a reward. True if it was the last one."""
        group.num_scored += 1
        return self._settled(group)

    def left_out(self, group: Group, slot: Slot) -> bool:
        """The group goes on without a trajectory. True if it was the last one that had no reward."""
        slot.leave_out()
        group.num_left_out += 1
        return self._settled(group)

    def _settled(self, group: Group) -> bool:
        if group.is_complete:
            self.batches.completed(group)
            self._drops.completed()
            if self._retirement:
                self._retirement.completed(group)
            return True
        return False

    def restarted(self, group: Group, policy_version: int) -> None:
        """A group restarts at this version: everything sampled of it is discarded."""
        self.batches.dropped(group)
        group.restart(policy_version)
        self.batches.admitted(group)

    def dropped(self, group: Group, reason: str) -> None:
        self._groups.remove(group)
        self.batches.dropped(group)
        self._window.drop(group.group_id)
        self.admission.dropped()
        self.filtering.dropped(reason, self.batches.next_step)
        self.num_failed += reason not in (ZERO_VARIANCE, OVERLONG)

    def committed(self, step: int) -> list[Group]:
        """
        A new checkpoint contains every step up to ``step``.

        Returns the groups that are not needed any more: those that the checkpoint before contains too. Groups of the
        newest checkpoint alone stay open, because the trainer resumes from the one before if the newest is damaged.
        """
        self.filtering.forget(self.committed_step)
        done = self.batches.forget(self.committed_step)
        self.committed_step = step
        for group in done:
            self._groups.remove(group)
        return done

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def rewarded(self, group: Group) -> None:
        """Count one more reward of a group, and queue a complete group for the filter."""
        if self.scored(group):
            self.filtering.completed(group)

    def fail(self, group: Group, unit: Unit, reason: str) -> None:
        """Go on without a trajectory that failed for good, or `give_up` the group if its estimator needs them all."""
        slot, sampled = group.slots[unit.index], group.sampled
        if slot not in sampled or len(sampled) <= self._least_group:
            self.give_up(group, reason)
            return
        self._out.record(LeftOut(unit, reason, slot.num_tokens))
        self._out.event("trajectory.left_out", group_id=unit.group_id, index=unit.index, reason=reason)
        if self.left_out(group, slot):
            self.filtering.completed(group)
        else:
            self._grading.left_out(group)

    def give_up(self, group: Group, reason: str) -> None:
        """Drop a group one of whose trajectories failed for good; raises `RunFailed` after too many in a row."""
        self._stop_sampling(group)
        self._drop(group, reason)
        self._drops.dropped(reason)

    @rule
    def take(self, message: Take, node: Node, now_s: float) -> None:
        wanted = message.step, node.peer
        if message.step < self.num_steps:  # Else it was sent before the trainer heard that the run is `Shortened`.
            self._wanted_step = wanted
        if self._first_take is None or self._first_take[1] != node.peer:
            self._first_take = wanted

    def has_computed(self, step: int, peer: str) -> bool:
        """True if a trainer that reports a step has computed it itself; earlier ones are from its checkpoint."""
        return self._first_take is not None and self._first_take[1] == peer and step >= self._first_take[0]

    @property
    def awaited_step(self) -> int | None:
        """Step whose batch the trainer waits for, because it is not complete; None if it waits for none."""
        return self._wanted_step[0] if self._wanted_step else None

    @property
    def awaited_spools(self) -> list[str]:
        """Spools that are away and store a trajectory of the batch that the trainer waits for."""
        return [] if self._wanted_step is None else self._away(self.batches.choose(self._wanted_step[0]) or [])

    def awaits_version(self, live_version: int) -> bool:
        """True if the trainer waits for a newer version to be live, with which groups too old for its step restart."""
        step, stragglers = self.awaited_step, self._stragglers
        return step is not None and stragglers is not None and not stragglers.may_form(step, live_version)

    @rule
    def step_failed(self, message: StepFailed, node: Node, now_s: float) -> None:
        """The trainer failed at a step; raises `RunFailed` if it has failed there before, for the same reason."""
        self._out.event("step.failed", step=message.step, reason=message.reason)
        self._step_failures.failed(message.step, message.reason)

    @rule
    def stepped(self, message: Stepped, node: Node, now_s: float) -> None:
        """
        Record which trajectories the trainer refused; raises `RunFailed` if it refuses all groups in a row. A resumed
        trainer refuses the same again, and a forgotten step is in two checkpoints: neither is recorded twice.
        """
        self._step_failures.done(message.step)
        groups = {group.group_id: group for group in self.batches.taken(message.step) or []}
        for refusal in message.refused:
            group = groups.get(refusal.unit.group_id) if refusal.unit.split == "train" else None
            if group and 0 <= refusal.unit.index < group.size:
                is_new = not group.untrained
                self._refused(message.step, group, refusal)
                if is_new:
                    self._drops.untrained(refusal.reason)
        if not all(group.untrained for group in groups.values()):
            self._drops.trained()

    def trained(self, step: int) -> list[Group]:
        """Groups of a step that the trainer trained on; empty if the step is forgotten."""
        return [group for group in self.batches.taken(step) or [] if not group.untrained]

    def trainer_left(self) -> None:
        self._wanted_step = None

    def commit(self, message: Commit) -> None:
        """The trainer wrote a checkpoint: payloads that only older ones need may go."""
        if message.step <= self.committed_step:
            return  # A resumed trainer repeats the checkpoint it starts from.
        self._out.record(Committed(message.step, message.checkpoint))
        steps = message.step + 1
        self._out.event("checkpoint.written", step=message.step, steps=steps, path=message.checkpoint)
        if done := self.committed(message.step):
            needed_from = first_needed(done, self._groups)
            for spool in self._nodes.with_role("spool"):
                if spool.name in needed_from:
                    self._out.send(spool.peer, Trim(needed_from[spool.name]), once_durable=True)

    # ── rules that follow from any change ───────────────────────────────────────────────────

    def advance(self, live_version: int) -> None:
        """Filter, restart and admit groups; raises `RunFailed` as `GroupFilter` and `Retirement` do."""
        if self.filtering.untested:
            for group in self.filtering.filtered():
                self._drop(group, ZERO_VARIANCE)
                self.filtering.check_patience(group)
        if self._stragglers:
            for group in self._stragglers.overdue(self.batches, self.batches.next_step, live_version):
                self.restart(group, live_version)
        while live_version >= 0 and self._window.room > 0 and self.admission.num_needed:
            group, record = self.admission.admit(live_version)
            self.opened(group)
            self._dispatcher.wanted(group)
            self._out.record(record)

    def answer_take(self, live_version: int) -> None:
        """Send the batch that the trainer waits for, once its groups are complete; `RunFailed` if it is forgotten."""
        if self._wanted_step is None:
            return
        step, peer = self._wanted_step
        if self.batches.must_wait(step):
            return
        groups = self.batches.taken(step) or self._form(step, live_version)
        if groups is None:
            return
        self._wanted_step = None
        if step in self._skipped_steps:  # The trainer leaves it out, as if it had refused a trajectory of each group.
            for group in groups:
                if not group.untrained:
                    unit = group.kept[0].unit
                    self._refused(step, group, Refusal(unit, f"run.skip_steps has step {nth(step)}", at_fault=""))
        trajectories = [
            # The trainer refused in an earlier life what was given up.
            slot.scored_trajectory(group.untrained if slot.state is SlotState.GIVEN_UP else "")
            for group in groups
            for slot in group.kept
        ]
        self._out.send(peer, Batch(step, trajectories, self.batches.lr_of[step]), once_durable=True)

    def _form(self, step: int, live_version: int) -> list[Group] | None:
        if step < self.batches.next_step:
            self._wanted_step = None
            raise RunFailed(
                f"the trainer asks for step {nth(step)}, whose payloads are gone because two checkpoints contain it: "
                "resume the trainer from one of the two newest checkpoints; the newest contains step "
                f"{nth(self.committed_step)}"
            )
        if self._stragglers and not self._stragglers.may_form(step, live_version):
            return None
        groups = self.batches.choose(step)
        if groups is None or self._away(groups):
            return None
        self.batches.take(step, groups)
        group_ids = [group.group_id for group in groups]
        self._window.consume(step, group_ids)
        self._out.record(Taken(step, group_ids))
        if self._retirement and (news := self._retirement.news()):
            self._out.event("prompts.retired", step=step, **news)
        return groups

    def _away(self, groups: Iterable[Group]) -> list[str]:
        """Spools that are away and store a trajectory of these groups."""
        if self._spools.are_all_reachable:
            return []
        refs = (slot.ref for group in groups for slot in group.slots if slot.ref)
        return sorted({ref.spool for ref in refs if not self._spools.is_reachable(ref)})

    def restart(self, group: Group, version: int) -> None:
        """Sample a group that no step has taken again, with this version, which is the live one."""
        thrown_away = group.lengths
        self._stop_sampling(group)
        self.restarted(group, version)
        self._dispatcher.wanted(group)
        self._out.record(Restarted(group.group_id, version, thrown_away))
        self._out.event(
            "group.restarted", group_id=group.group_id, policy_version=version, tokens_thrown_away=sum(thrown_away)
        )

    def _refused(self, step: int, group: Group, refusal: Refusal) -> None:
        """The trainer refused one trajectory of a group: it left out the whole group."""
        slot, reason = group.slots[refusal.unit.index], refusal.reason
        if slot.state in (SlotState.GIVEN_UP, SlotState.LEFT_OUT):
            return
        slot.give_up()
        slot.attempts += 1
        self._failures.count("trainer", reason)
        if refusal.at_fault and (name := slot.culprit(refusal.at_fault)):
            self._faults.failed(name, refusal.at_fault, f"trainer: {reason}")
        self._out.record(FailedAttempt(slot.unit, "trainer", reason, slot.attempts, True))
        if not group.untrained:
            group.untrained = reason
            self._out.record(Untrained(step, group.group_id, reason, sum(group.lengths)))
            self._out.event("group.untrained", step=step, group_id=group.group_id, reason=reason)

    def _drop(self, group: Group, reason: str) -> None:
        self.dropped(group, reason)
        self._out.record(Dropped(group.group_id, reason, sum(group.lengths)))
        self._out.event("group.dropped", group_id=group.group_id, reason=reason)

    def _stop_sampling(self, group: Group) -> None:
        self._grading.drop(group)
        self._dispatcher.cancel(group)


def _max_staleness(schedule: Schedule) -> tuple[StalenessBound | None, Stragglers | None]:
    """Bound for `BatchBook` with ``wait``, `Stragglers` with ``reissue``; neither otherwise."""
    if (most := schedule.kept_max_staleness) is None:
        return None, None
    bound = StalenessBound(most, schedule.groups_per_step, schedule.steps_per_publish)
    return (bound, None) if schedule.on_straggler == "wait" else (None, Stragglers(bound))
