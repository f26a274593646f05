"""
What must hold at every step, whatever goes wrong; and what must hold at the end.

    each record      see `record_rules`
    each message     `Settled` and `Batch` say only what is on disk; every report of the spool is answered
    each step        what the weights contain is never trained again, and is what its prompts say
    each version     has the same weights for ever
    each restart     forgets no result, no verdict, no attempt
    the end          everything was trained once, in the order of the data, and the audit finds nothing

A promise that is broken is noted, and the schedule ends there.
"""

from collections.abc import Callable, Sequence

from asyncrl.broker.groups.group import State
from asyncrl.broker.ledger.audit import audit
from asyncrl.broker.ledger.records import AnyRecord
from asyncrl.broker.scheduler import Scheduler
from asyncrl.config.sections import Config
from asyncrl.data.prompts import Draw
from asyncrl.messages import Batch, Cancelled, Message, PutItem, ScoredTrajectory, Settled, SpoolRef, Stored, Unit
from asyncrl.trainer.packing.batch import TrainingTrajectory
from tests.simulation.checkpoints import Trained
from tests.simulation.plan import tokens_of
from tests.simulation.record_rules import RecordRules

PATIENCE_S = 4.0
"""How long a result that is on disk may be unsettled while nothing goes wrong: several of its repeats."""
TRANSACTIONS = 3
"""A report's records are in the next transaction but one at the latest; by the end of one more it was answered."""


class Violation(Exception):
    """A promise was broken; says which."""


class Invariants:
    """
    Of one schedule, over all lives of everybody.

    Args:
        prompt_at: The order of the data.
        highest_checkpoint: Steps in the newest checkpoint there ever was.
        broken: Told of a promise that does not hold.
    """

    def __init__(
        self,
        config: Config,
        prompt_at: Callable[[int], Draw],
        highest_checkpoint: Callable[[], int],
        broken: Callable[[str], None],
    ) -> None:
        self._config = config
        self._schedule = config.schedule
        self._prompt_at = prompt_at
        self._broken = broken
        self._records = RecordRules(config, prompt_at, highest_checkpoint, self._require)
        self._num_transactions = 0
        self._batches: dict[int, list[ScoredTrajectory]] = {}
        self._weights: dict[int, Trained] = {}
        self._unsettled: dict[tuple[str, Unit, int], float] = {}
        """Since when a rollout waits for what is on disk."""
        self._unanswered: dict[tuple[str, Unit, int], int] = {}
        """Trajectories the spool reported, by their sender and lease: in which transaction that was."""

    # ── each record, each message ───────────────────────────────────────────────────────────

    def committed(self, records: Sequence[AnyRecord]) -> None:
        """These are on disk now, all in one transaction."""
        self._num_transactions += 1
        for (sender, unit, _), since in self._unanswered.items():
            is_answered = self._num_transactions - since < TRANSACTIONS
            self._require(is_answered, f"{unit} of {sender} was reported {TRANSACTIONS} transactions ago: no answer")
        for record in records:
            self._records.add(record)

    def rules(self, scheduler: Scheduler) -> None:
        """The broker has decided something."""
        window = scheduler.window
        self._require(window.num_open <= window.size, f"{window.num_open} groups are open; {window.size} may be")
        for node in scheduler.nodes.all():
            if 0 < node.credit_limit < node.granted:  # Before its first offer it may have brought what it held.
                self._broken(f"{node.peer} was given {node.granted}, and asked for {node.credit_limit}")

    def heard(self, message: Message) -> None:
        """The broker takes this in."""
        if isinstance(message, Stored):
            sender = f"{message.node}.{message.incarnation}"
            for item in message.items:
                self._unanswered.setdefault((sender, item.unit, item.lease_id), self._num_transactions)

    def said(self, peer: str, message: Message) -> None:
        """The broker sends this."""
        match message:
            case Settled(items=items, unfinished=unfinished):
                known = {unit for unit, _ in self._records.on_disk}
                for item in items:
                    self._require(item.unit in known, f"{item.unit} is settled, and not on disk")
                self._answered(peer, {item.unit for item in (*items, *unfinished)}, set())
            case Cancelled(lease_ids=lease_ids):
                self._answered(peer, set(), set(lease_ids))
            case Batch(step=step, trajectories=trajectories):
                self._require(step in self._records.batches, f"the batch of step {step} is sent, and not on disk")
                earlier = self._batches.setdefault(step, trajectories)
                self._require(earlier == trajectories, f"step {step} was given two batches")

    def _answered(self, peer: str, units: set[Unit], lease_ids: set[int]) -> None:
        for sender, unit, lease_id in list(self._unanswered):
            if sender == peer and (unit in units or lease_id in lease_ids):
                del self._unanswered[sender, unit, lease_id]

    # ── each step, each version ─────────────────────────────────────────────────────────────

    def trains(self, step: int, samples: list[TrainingTrajectory], trained: Trained) -> None:
        """The trainer takes ``step`` on weights that contain ``trained``."""
        known = {group_id for _, group_ids in trained for group_id in group_ids}
        expected = [sample.unit for sample in self._batches.get(step, [])]
        self._require(len(samples) == len(expected), f"step {step} trains on {len(samples)} of {len(expected)} samples")
        for sample, unit in zip(samples, expected, strict=False):
            group_id = sample.group_id
            self._require(group_id not in known, f"group {group_id} is in the weights already, in step {step} again")
            self._require(group_id == unit.group_id, f"step {step} trains on group {group_id}, not {unit.group_id}")
            row = self._prompt_at(group_id).row
            self._require(list(sample.prompt_ids) == [row], f"group {group_id} is trained on another prompt")
            seed = (self._config.run.seed << 40) + unit.group_id * self._schedule.group_size + unit.index
            is_its_own = list(sample.completion_ids) == tokens_of(seed)
            self._require(is_its_own, f"step {step}: the payload of {unit} is {sample.completion_ids}")

    def decodes_with(self, policy_version: int, trained: Trained) -> None:
        """A rollout swaps in weights."""
        earlier = self._weights.setdefault(policy_version, trained)
        self._require(earlier == trained, f"version {policy_version} has two sets of weights: {earlier} and {trained}")

    # ── each restart, each moment ───────────────────────────────────────────────────────────

    def restarted(self, scheduler: Scheduler, missing: Sequence[SpoolRef]) -> None:
        """A broker has replayed the ledger; ``missing`` are payloads that it names and the spool lacks."""
        self._unanswered.clear()
        self._require(not missing, f"the spool lacks {missing}, which the ledger names")
        for unit in self._records.results:
            group = scheduler.groups.get(unit.group_id) if unit.split == "train" else None
            if group is None:
                is_needed = unit.split == "train" and self._records.is_needed(unit.group_id)
                self._require(not is_needed, f"group {unit.group_id} is forgotten by a broker that started again")
                continue
            slot = group.slots[unit.index]
            state = State.SCORED if unit in self._records.verdicts else State.STORED
            self._require(slot.state is state, f"{unit} is {slot.state} to a broker that started again, not {state}")
            self._require(slot.attempts == self._records.attempts[unit], f"{unit}: its attempts are forgotten")

    def unsettled(self, incarnation: str, items: Sequence[PutItem], now_s: float, calm_since_s: float) -> None:
        """A living rollout waits for these to be settled. Nothing has gone wrong since ``calm_since_s``."""
        for unit, lease_id in [(item.unit, item.lease_id) for item in items]:
            if (unit, lease_id) in self._records.on_disk:
                since_s = self._unsettled.setdefault((incarnation, unit, lease_id), now_s)
                waited_s = now_s - max(since_s, calm_since_s)
                self._require(waited_s < PATIENCE_S, f"{unit} has been on disk for {waited_s:g} s, and is not settled")

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    def ended(self, records: Sequence[AnyRecord], trained: Trained) -> None:
        """The run is complete; ``trained`` is in its last checkpoint."""
        schedule, steps = self._schedule, self._config.run.steps
        self._require([step for step, _ in trained] == list(range(steps)), f"the weights contain {trained}")
        group_ids = [group_id for _, group_ids in trained for group_id in group_ids]
        if schedule.order == "fifo":
            moved = self._records.restarted  # To the end of the queue.
            in_turn = [group_id for group_id in group_ids if group_id not in moved]
            kept = [group_id for group_id in self._records.admitted if group_id not in self._records.dropped | moved]
            self._require(in_turn == kept, f"groups {in_turn} were trained; the order of the data is {kept}")
        self._require(len(set(group_ids)) == len(group_ids), f"groups {group_ids} were trained: one of them twice")
        sums = audit(records, schedule)
        self._require(not sums.problems, f"the audit says: {'; '.join(sums.problems)}")
        self._require(sums.open == 0, f"{sums.open} groups are open at the end")

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._broken(otherwise)
