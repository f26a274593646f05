"""
Invariants that are checked during a schedule and at its end.

    each record      see `record_rules`
    each group       that is judged whole has its rewards from one call, and in one transaction
    each message     `Settled` and `Batch` mention only durable trajectories; every report of the spool is answered
    each step        a group in the weights is never trained again, its tokens belong to its prompt, and no group with a
                     damaged trajectory is trained at all
    each lease       continues what is on disk of its trajectories, see `resumption`
    each version     has the same weights everywhere
    each restart     no result, reward or attempt is lost
    the end          every sound group was trained once, in data order, the audit finds no problem, and every trajectory
                     that a step left out is counted

The first violation ends the schedule.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from asyncrl.broker.groups.group import SlotState
from asyncrl.broker.ledger.audit import audit
from asyncrl.broker.ledger.records import AnyRecord, Rewarded
from asyncrl.broker.scheduler import Scheduler
from asyncrl.config.config import Config
from asyncrl.data.prompts import Draw
from asyncrl.messages.codec import Message
from asyncrl.messages.rollout import Cancelled, Lease, Settled
from asyncrl.messages.session import Stop
from asyncrl.messages.spool import PutItem, SpoolRef, Stored
from asyncrl.messages.trainer import Batch, ScoredTrajectory
from asyncrl.messages.trajectory import Unit
from asyncrl.trainer.packing.step import TrainingTrajectory
from tests.simulation.checkpoints import Trained
from tests.simulation.plan import tokens_of
from tests.simulation.record_rules import RecordRules
from tests.simulation.resumption import Resumption

ROUNDING = 1e-6
PATIENCE_S = 4.0
"""Longest time that a durable result may stay unsettled without faults: several repeats."""
TRANSACTIONS = 3
"""A report's records are in one of the next two transactions, so it is answered by the end of the third."""


class Violation(Exception):
    """Raised with the invariant that was violated."""


class Invariants:
    """
    Invariants of one schedule, over all restarts.

    Args:
        prompt_at: The data order.
        highest_checkpoint: Returns the most steps that a checkpoint ever contained.
        is_damaged: True for a payload that was damaged before it was put.
        on_devices: True if the node of this name and incarnation has memory on the shared devices.
        broken: Called with a sentence for each violation.
    """

    def __init__(
        self,
        config: Config,
        prompt_at: Callable[[int], Draw],
        highest_checkpoint: Callable[[], int],
        is_damaged: Callable[[SpoolRef], bool],
        on_devices: Callable[[str, str], bool],
        broken: Callable[[str], None],
    ) -> None:
        self._config = config
        self._schedule = config.schedule
        self._prompt_at = prompt_at
        self._is_damaged = is_damaged
        self._on_devices = on_devices
        self._broken = broken
        self._records = RecordRules(config, prompt_at, highest_checkpoint, self._require)
        self.resumption = Resumption(self._require)
        self.judged: dict[tuple[int, int], list[Rewarded]] = {}
        """Rewards of each group that was judged whole, by its id and its number of restarts."""
        self._num_transactions = 0
        self._batches: dict[int, list[ScoredTrajectory]] = {}
        self._weights: dict[int, Trained] = {}
        self._unsettled: dict[tuple[str, Unit, int], float] = {}
        """Time since which a rollout waits for the settlement of a durable result."""
        self._unanswered: dict[tuple[str, Unit, int], int] = {}
        """Number of transactions at the report of each unanswered trajectory, by sender, unit and lease id."""

    # ── each record, each message ───────────────────────────────────────────────────────────

    def committed(self, records: Sequence[AnyRecord]) -> None:
        """Check records that became durable in one transaction."""
        self._num_transactions += 1
        for (sender, unit, _), since in self._unanswered.items():
            is_answered = self._num_transactions - since < TRANSACTIONS
            self._require(is_answered, f"{unit} of {sender} was reported {TRANSACTIONS} transactions ago: no answer")
        for record in records:
            self._records.add(record)
            self.resumption.add(record)
        if self._config.reward.group:
            self._judged_whole(records)

    def _judged_whole(self, records: Sequence[AnyRecord]) -> None:
        """Each group that is rewarded in a transaction has all its rewards from it, and from one call."""
        judged: dict[tuple[int, int], list[Rewarded]] = {}
        for record in records:
            if isinstance(record, Rewarded) and record.unit.split == "train":
                judged.setdefault((record.unit.group_id, record.num_restarts), []).append(record)
        for (group_id, num_restarts), rewards in judged.items():
            calls = {reward.metrics["call"] for reward in rewards}
            self._require(len(calls) == 1, f"group {group_id} is rewarded by the calls {calls}")
            is_zero_sum = abs(sum(reward.reward for reward in rewards)) < ROUNDING
            self._require(is_zero_sum, f"{len(rewards)} rewards of group {group_id} are of a larger tournament")
            is_first = self.judged.setdefault((group_id, num_restarts), rewards) is rewards
            self._require(is_first, f"group {group_id} is rewarded in two transactions")

    def rules(self, scheduler: Scheduler) -> None:
        """Check the scheduler's state."""
        window = scheduler.window
        self._require(window.num_open <= window.size, f"{window.num_open} groups are open; {window.size} may be")
        for node in scheduler.nodes.all():
            if 0 < node.credit_limit < node.granted:  # Before its first offer a node may hold older leases.
                self._broken(f"{node.peer} was given {node.granted}, and asked for {node.credit_limit}")
        if self._config.rollout.colocated:
            there = [node for node in scheduler.nodes.all() if self._on_devices(node.name, node.incarnation)]
            self._require(len({node.role for node in there}) < 2, f"{there} are on the shared devices together")

    def heard(self, message: Message) -> None:
        """Check a message that the broker received."""
        if isinstance(message, Stored):
            sender = f"{message.node}.{message.incarnation}"
            for item in message.items:
                self._unanswered.setdefault((sender, item.unit, item.lease_id), self._num_transactions)

    def said(self, peer: str, message: Message) -> None:
        """Check a message that the broker sends."""
        match message:
            case Settled(items=items, unfinished=unfinished):
                known = {unit for unit, _ in self._records.on_disk}
                for item in items:
                    self._require(item.unit in known, f"{item.unit} is settled, and not on disk")
                self._answered(peer, {item.unit for item in (*items, *unfinished)}, set())
            case Lease():
                self.resumption.granted(message)
            case Cancelled(lease_ids=lease_ids):
                self._answered(peer, set(), set(lease_ids))
            case Stop():  # The node leaves, and waits for no answer any more.
                self._unanswered = {key: since for key, since in self._unanswered.items() if key[0] != peer}
            case Batch(step=step, trajectories=trajectories):
                self._require(step in self._records.state.batches, f"the batch of step {step} is sent, and not on disk")
                same = [replace(trajectory, refused="") for trajectory in trajectories]
                self._require(self._batches.setdefault(step, same) == same, f"step {step} was given two batches")

    def _answered(self, peer: str, units: set[Unit], lease_ids: set[int]) -> None:
        for sender, unit, lease_id in list(self._unanswered):
            if sender == peer and (unit in units or lease_id in lease_ids):
                del self._unanswered[sender, unit, lease_id]

    # ── each step, each version ─────────────────────────────────────────────────────────────

    def trains(self, step: int, trajectories: list[TrainingTrajectory], trained: Trained) -> None:
        """Check a step that the trainer takes on weights that contain ``trained``."""
        known = {group_id for _, group_ids in trained for group_id in group_ids}
        batch = self._batches.get(step, [])
        damaged = self._damaged_groups(batch)
        expected = [trajectory.unit for trajectory in batch if trajectory.unit.group_id not in damaged]
        is_whole = len(trajectories) == len(expected)
        self._require(is_whole, f"step {step} trains on {len(trajectories)} of {len(expected)} trajectories")
        for trajectory, unit in zip(trajectories, expected, strict=False):
            group_id = trajectory.group_id
            self._require(group_id not in known, f"group {group_id} is in the weights already, in step {step} again")
            self._require(group_id == unit.group_id, f"step {step} trains on group {group_id}, not {unit.group_id}")
            row = self._prompt_at(group_id).row
            self._require(list(trajectory.prompt_ids) == [row], f"group {group_id} is trained on another prompt")
            seed = (self._config.run.seed << 40) + unit.group_id * self._schedule.group_size + unit.index
            is_its_own = list(trajectory.completion_ids) == tokens_of(seed)
            self._require(is_its_own, f"step {step}: the payload of {unit} is {trajectory.completion_ids}")
            is_sound = all(logprob == -0.5 for logprob in trajectory.behavior_logprobs)
            self._require(is_sound, f"step {step}: the log-probs of {unit} are {trajectory.behavior_logprobs}")

    def _damaged_groups(self, batch: Sequence[ScoredTrajectory]) -> set[int]:
        return {trajectory.unit.group_id for trajectory in batch if self._is_damaged(trajectory.ref)}

    def decodes_with(self, policy_version: int, trained: Trained) -> None:
        """Check weights that a rollout swaps in."""
        earlier = self._weights.setdefault(policy_version, trained)
        self._require(earlier == trained, f"version {policy_version} has two sets of weights: {earlier} and {trained}")

    # ── each restart, each moment ───────────────────────────────────────────────────────────

    def restarted(self, scheduler: Scheduler, missing: Sequence[SpoolRef]) -> None:
        """Check a scheduler after replay. ``missing`` are payloads in the ledger but not in the spool."""
        self._unanswered.clear()
        self.resumption.broker_restarted()
        self._require(not missing, f"the spool lacks {missing}, which the ledger names")
        for unit in self._records.state.results:
            group = scheduler.groups.group(unit)
            if group is None:
                is_needed = unit.split == "train" and self._records.is_needed(unit.group_id)
                self._require(not is_needed, f"group {unit.group_id} is forgotten by a restarted broker")
                continue
            slot = group.slots[unit.index]
            state = SlotState.SCORED if unit in self._records.state.rewards else SlotState.STORED
            state = SlotState.GIVEN_UP if unit in self._records.refused_by_trainer else state
            self._require(slot.state is state, f"{unit} is {slot.state} after a restart of the broker, not {state}")
            self._require(slot.attempts == self._records.attempts[unit], f"{unit}: its attempts are forgotten")

    def parted(self) -> None:
        """The broker answers nothing any more: rollouts report to the next one."""
        self._unanswered.clear()

    def unsettled(self, incarnation: str, items: Sequence[PutItem], now_s: float, calm_since_s: float) -> None:
        """Check results that a live rollout waits for. There was no fault since ``calm_since_s``."""
        for unit, lease_id in [(item.unit, item.lease_id) for item in items]:
            if (unit, lease_id) in self._records.on_disk:
                since_s = self._unsettled.setdefault((incarnation, unit, lease_id), now_s)
                waited_s = now_s - max(since_s, calm_since_s)
                self._require(waited_s < PATIENCE_S, f"{unit} has been on disk for {waited_s:g} s, and is not settled")

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    @property
    def num_steps(self) -> int:
        """Steps of the run, which ends before the last one that was planned if it has met its goal."""
        goals = self._records.state.goals
        return goals[-1].steps if goals else self._config.run.steps

    def ended(self, records: Sequence[AnyRecord], trained: Trained) -> None:
        """Check a complete run. ``trained`` is the content of its last checkpoint."""
        schedule, steps = self._schedule, self.num_steps
        self._require([step for step, _ in trained] == list(range(steps)), f"the weights contain {trained}")
        group_ids = [group_id for _, group_ids in trained for group_id in group_ids]
        left_out = {group_id for batch in self._batches.values() for group_id in self._damaged_groups(batch)}
        counted = set(self._records.state.untrained)
        self._require(counted == left_out, f"groups {counted} are recorded as left out; {left_out} are damaged")
        if schedule.order == "fifo":
            moved = set(self._records.state.restarts)  # Restarted groups move to the end of the queue.
            in_turn = [group_id for group_id in group_ids if group_id not in moved]
            gone = self._records.state.dropped.keys() | moved | left_out
            kept = [group_id for group_id in self._records.state.admitted if group_id not in gone]
            if self._records.state.goals:  # The groups after the last step stay open.
                kept = kept[: len(in_turn)]
            self._require(in_turn == kept, f"groups {in_turn} were trained; the order of the data is {kept}")
        if schedule.order == "windowed":
            self._require_few_passes(trained, schedule.reach or 1)
        self._require(len(set(group_ids)) == len(group_ids), f"groups {group_ids} were trained: one of them twice")
        sums = audit(records, schedule)
        self._require(not sums.problems, f"the audit says: {'; '.join(sums.problems)}")
        if not self._records.state.goals:
            self._require(sums.open == 0, f"{sums.open} groups are open at the end")

    def _require_few_passes(self, trained: Trained, reach: int) -> None:
        """Each group that did not move to the end of the line was passed by fewer groups than the reach has slots."""
        moved = self._records.state.restarts.keys()
        step_of = {group_id: step for step, group_ids in trained for group_id in group_ids}
        for group_id in step_of.keys() - moved:
            earlier = {other for other, step in step_of.items() if step < step_of[group_id] and other > group_id}
            passed_by = earlier - moved
            self._require(len(passed_by) < reach, f"group {group_id} was passed by {passed_by}; the reach is {reach}")

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._broken(otherwise)
