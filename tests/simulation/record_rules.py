"""
Rules for each durable record of a ledger, over all restarts of the broker.

    Admitted    ids are consecutive, prompts follow the data order, and the window is not exceeded
    Result      one per unit and refusal; Rewarded: one per result; FailedAttempt: counted across restarts
    Refused     a result without a reward, which is void; Untrained: a group that its step took, once
    LeftOut     a unit without a reward, once, of an open group that has enough others
    Taken       the next step; whole groups with rewards, in no other step, and none too old
    Committed   only steps that a checkpoint contains

The rules are written from the specification, independently of the code that implements it and of the audit's rules; of
an audit they take the state after the records before, `LedgerState`, alone.
"""

from collections import Counter
from collections.abc import Callable
from math import inf

from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Dropped,
    Duplicate,
    FailedAttempt,
    LeftOut,
    Refused,
    Restarted,
    Result,
    Rewarded,
    Taken,
    Untrained,
    VersionLive,
)
from asyncrl.broker.ledger.state import LedgerState
from asyncrl.config.config import Config
from asyncrl.data.prompts import Draw
from asyncrl.messages.trajectory import Unit

Require = Callable[[bool, str], None]
"""Reports the sentence as a violation unless the condition holds."""


class RecordRules:
    """
    Rules for one ledger.

    Args:
        prompt_at: The data order.
        highest_checkpoint: Returns the most steps that a checkpoint ever contained.
    """

    def __init__(
        self, config: Config, prompt_at: Callable[[int], Draw], highest_checkpoint: Callable[[], int], require: Require
    ) -> None:
        self._schedule, self._least_group = config.schedule, config.least_group
        self._prompt_at = prompt_at
        self._highest_checkpoint = highest_checkpoint
        self._require = require
        self.state = LedgerState(config.schedule, config.greedy_per_group)
        self.attempts: Counter[Unit] = Counter()
        self.on_disk: set[tuple[Unit, int]] = set()
        """Unit and lease id of every counted trajectory, results and duplicates."""
        self.refused_by_trainer: set[Unit] = set()

    def add(self, record: AnyRecord) -> None:
        """Check one durable record against the rules, and remember it."""
        match record:
            case Result() | Rewarded() | Duplicate() | Refused() | LeftOut() | FailedAttempt():
                self._check_unit(record)
            case Admitted() | Restarted() | Dropped() | Untrained():
                self._check_group(record)
            case Taken():
                self._check_taken(record)
            case VersionLive(policy_version=version):
                before = self.state.versions.live_version
                self._require(version > before, f"version {version} is live after version {before}")
            case Committed(step=step):
                written = self._highest_checkpoint()
                self._require(step < written, f"step {step} is committed, but {written} steps are in a checkpoint")
        self.state.add(record)

    def is_needed(self, group_id: int) -> bool:
        """True if the group is in the window and a trainer may still ask for it."""
        steps = self.state.taken.get(group_id, ())  # Those in the two newest checkpoints are not asked for again.
        return group_id in self.state.open and all(step >= self.state.first_needed_step for step in steps)

    def _check_group(self, record: Admitted | Restarted | Dropped | Untrained) -> None:
        state, group_id = self.state, record.group_id
        is_open = group_id in state.open
        match record:
            case Admitted(epoch=epoch, row=row):
                expected, draw, window = len(state.admitted), self._prompt_at(group_id), self._schedule.window
                is_next = group_id == expected
                self._require(is_next, f"group {group_id} was admitted; expected {expected}: ids are consecutive")
                self._require((epoch, row) == (draw.epoch, draw.row), f"group {group_id} is another prompt")
                num_open = len(state.open) + 1
                self._require(num_open <= window, f"{num_open} groups are open; the window holds {window}")
            case Restarted():
                self._require(is_open, f"group {group_id} is restarted, but is not open")
            case Dropped():
                self._require(is_open, f"group {group_id} was dropped, but is not open")
                self._require(group_id not in state.taken, f"group {group_id} was trained and dropped")
            case Untrained(step=step):
                self._require(group_id in state.batches.get(step, ()), f"step {step} leaves out group {group_id}")
                self._require(group_id not in state.untrained, f"group {group_id} is left out twice")

    def _check_unit(self, record: Result | Rewarded | Duplicate | Refused | LeftOut | FailedAttempt) -> None:
        unit, state = record.unit, self.state
        left_out = state.left_out.get(unit.group_id, set())
        has_result, has_reward = unit in state.results, unit in state.rewards
        match record:
            case Result(lease_id=lease_id):
                self._require(not has_result, f"{unit} has two results")
                self._require(unit not in left_out, f"{unit} has a result, and was left out")
                self.on_disk.add((unit, lease_id))
            case Duplicate(lease_id=lease_id):
                self.on_disk.add((unit, lease_id))
            case Rewarded():
                self._require(has_result, f"{unit} has a reward and no result")
                self._require(not has_reward, f"{unit} has two rewards")
            case Refused():
                self._require(has_result and not has_reward, f"{unit} is refused, and has no result")
            case LeftOut():
                self._require(unit.group_id in state.open, f"{unit} is left out of a group that is not open")
                self._require(not has_reward, f"{unit} has a reward, and is left out")
                self._require(unit not in left_out, f"{unit} is left out twice")
                kept = self._schedule.group_size - len(left_out) - 1
                self._require(kept >= self._least_group, f"group {unit.group_id} goes on with {kept} trajectories")
            case FailedAttempt(attempts=attempts):
                if record.stage == "trainer":
                    self._require(unit not in self.refused_by_trainer, f"the trainer refuses {unit} twice")
                    self.refused_by_trainer.add(unit)
                self.attempts[unit] += 1
                is_counted = unit.split == "held_out" or attempts == self.attempts[unit]
                self._require(is_counted, f"{unit} has failed {self.attempts[unit]} times, not {attempts}")

    def _check_taken(self, record: Taken) -> None:
        step, group_ids, expected = record.step, record.group_ids, len(self.state.batches)
        self._require(step == expected, f"step {step} was taken; expected step {expected}")
        self._require(len(set(group_ids)) == self._schedule.groups_per_step, f"step {step} takes groups {group_ids}")
        for group_id in group_ids:
            self._require(group_id not in self.state.taken, f"group {group_id} is trained in two steps")
            self._require(group_id not in self.state.dropped, f"group {group_id} was dropped and trained")
            for index in range(self._schedule.group_size):
                self._require_fresh(Unit(group_id, index), step)

    def _require_fresh(self, unit: Unit, step: int) -> None:
        state = self.state
        if unit in state.left_out.get(unit.group_id, ()):
            return
        self._require(unit in state.rewards, f"{unit} is trained in step {step} without a reward")
        if result := state.results.get(unit):
            oldest, version = result.summary.oldest_version, step // self._schedule.steps_per_publish
            self._require(oldest >= state.min_versions[unit.group_id], f"{unit} is older than its group")
            is_bounded = version - oldest <= self._most_versions()
            self._require(is_bounded, f"{unit}, written by version {oldest}, is trained in version {version}")

    def _most_versions(self) -> float:
        """Largest staleness at which a trajectory may be trained on."""
        schedule = self._schedule
        by_window = schedule.staleness_bound if schedule.order == "fifo" else inf
        if schedule.order == "windowed":
            per_version = schedule.groups_per_step * schedule.steps_per_publish
            by_window = (schedule.window + (schedule.reach or 1) - 2) // per_version
        by_bound = inf if schedule.kept_max_staleness is None else schedule.kept_max_staleness
        return min(by_window, by_bound)
