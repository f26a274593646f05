"""
Rules for each durable record of a ledger, over all restarts of the broker.

    Admitted    ids are consecutive, prompts follow the data order, and the window is not exceeded
    Result      one per unit and refusal; Rewarded: one per result; FailedAttempt: counted across restarts
    Refused     a result without a reward, which is void; Untrained: a group that its step took, once
    LeftOut     a unit without a reward, once, of an open group that has enough others
    Taken       the next step; whole groups with rewards, in no other step, and none too old
    Committed   only steps that a checkpoint contains

The rules are written from the specification, independently of the code that implements it.
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
        self.admitted: dict[int, int] = {}
        """Minimum version of each group."""
        self.open: set[int] = set()
        self.results: dict[Unit, Result] = {}
        self.rewards: set[Unit] = set()
        self.left_out: set[Unit] = set()
        self.attempts: Counter[Unit] = Counter()
        self.on_disk: set[tuple[Unit, int]] = set()
        """Unit and lease id of every counted trajectory, results and duplicates."""
        self.dropped: set[int] = set()
        self.restarted: set[int] = set()
        self.untrained: set[int] = set()
        self.refused_by_trainer: set[Unit] = set()
        self.batches: dict[int, list[int]] = {}
        self.needed_from = 0
        """Steps below this are in the two newest checkpoints, so no trainer asks for them again."""
        self._committed = -1
        self._taken: set[int] = set()
        self._live_version = -1

    def add(self, record: AnyRecord) -> None:
        """Check one durable record against the rules, and remember it."""
        match record:
            case Admitted():
                self._admit(record)
            case Untrained(step=step, group_id=group_id):
                self._require(group_id in self.batches.get(step, ()), f"step {step} leaves out group {group_id}")
                self._require(group_id not in self.untrained, f"group {group_id} is left out twice")
                self.untrained.add(group_id)
            case Result() | Rewarded() | Duplicate() | Refused() | LeftOut() | FailedAttempt():
                self._add_to_unit(record)
            case Restarted():
                self._restart(record)
            case Taken():
                self._take(record)
            case Dropped(group_id=group_id):
                self._require(group_id in self.open, f"group {group_id} was dropped, but is not open")
                self._require(group_id not in self._taken, f"group {group_id} was trained and dropped")
                self.dropped.add(group_id)
                self.open.discard(group_id)
            case VersionLive():
                self._live(record)
            case Committed(step=step):
                written = self._highest_checkpoint()
                self._require(step < written, f"step {step} is committed, but {written} steps are in a checkpoint")
                self.needed_from, self._committed = self._committed + 1, step

    def is_needed(self, group_id: int) -> bool:
        """True if the group is in the window and a trainer may still ask for it."""
        is_done = any(group_id in self.batches[step] for step in range(self.needed_from))
        return group_id in self.open and not is_done

    def _admit(self, record: Admitted) -> None:
        group_id, draw = record.group_id, self._prompt_at(record.group_id)
        expected, window = len(self.admitted), self._schedule.window
        self._require(group_id == expected, f"group {group_id} was admitted; expected {expected}: ids are consecutive")
        self._require((record.epoch, record.row) == (draw.epoch, draw.row), f"group {group_id} is another prompt")
        self.admitted[group_id] = record.policy_version
        self.open.add(group_id)
        self._require(len(self.open) <= window, f"{len(self.open)} groups are open; the window holds {window}")

    def _add_to_unit(self, record: Result | Rewarded | Duplicate | Refused | LeftOut | FailedAttempt) -> None:
        unit = record.unit
        match record:
            case Result(lease_id=lease_id):
                self._require(unit not in self.results, f"{unit} has two results")
                self._require(unit not in self.left_out, f"{unit} has a result, and was left out")
                self.results[unit] = record
                self.on_disk.add((unit, lease_id))
            case Duplicate(lease_id=lease_id):
                self.on_disk.add((unit, lease_id))
            case Rewarded():
                self._require(unit in self.results, f"{unit} has a reward and no result")
                self._require(unit not in self.rewards, f"{unit} has two rewards")
                self.rewards.add(unit)
            case Refused():
                self._require(
                    unit in self.results and unit not in self.rewards, f"{unit} is refused, and has no result"
                )
                self.results.pop(unit, None)
            case LeftOut():
                self._require(unit.group_id in self.open, f"{unit} is left out of a group that is not open")
                self._require(unit not in self.rewards, f"{unit} has a reward, and is left out")
                self._require(unit not in self.left_out, f"{unit} is left out twice")
                self.left_out.add(unit)
                self.results.pop(unit, None)
                kept = len(self._units(unit.group_id)) - sum(one.group_id == unit.group_id for one in self.left_out)
                self._require(kept >= self._least_group, f"group {unit.group_id} goes on with {kept} trajectories")
            case FailedAttempt(attempts=attempts):
                if record.stage == "trainer":
                    self._require(unit not in self.refused_by_trainer, f"the trainer refuses {unit} twice")
                    self.refused_by_trainer.add(unit)
                self.attempts[unit] += 1
                is_counted = unit.split == "held_out" or attempts == self.attempts[unit]
                self._require(is_counted, f"{unit} has failed {self.attempts[unit]} times, not {attempts}")

    def _restart(self, record: Restarted) -> None:
        """Void everything sampled for the group."""
        self._require(record.group_id in self.open, f"group {record.group_id} is restarted, but is not open")
        self.admitted[record.group_id] = record.policy_version
        self.restarted.add(record.group_id)
        for unit in self._units(record.group_id):
            self.results.pop(unit, None)
            self.rewards.discard(unit)
            self.left_out.discard(unit)

    def _take(self, record: Taken) -> None:
        step, group_ids, expected = record.step, record.group_ids, len(self.batches)
        self._require(step == expected, f"step {step} was taken; expected step {expected}")
        self._require(len(set(group_ids)) == self._schedule.groups_per_step, f"step {step} takes groups {group_ids}")
        self.batches[step] = group_ids
        for group_id in group_ids:
            self._require(group_id not in self._taken, f"group {group_id} is trained in two steps")
            self._require(group_id not in self.dropped, f"group {group_id} was dropped and trained")
            self._taken.add(group_id)
            for unit in self._units(group_id):
                self._require_fresh(unit, step)

    def _require_fresh(self, unit: Unit, step: int) -> None:
        if unit in self.left_out:
            return
        self._require(unit in self.rewards, f"{unit} is trained in step {step} without a reward")
        if result := self.results.get(unit):
            oldest, version = result.summary.oldest_version, step // self._schedule.steps_per_publish
            self._require(oldest >= self.admitted[unit.group_id], f"{unit} is older than its group")
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

    def _live(self, record: VersionLive) -> None:
        version, before = record.policy_version, self._live_version
        self._require(version > before, f"version {version} is live after version {before}")
        self._live_version = version
        for step, group_ids in self.batches.items():
            if step < record.next_step:
                self.open.difference_update(group_ids)

    def _units(self, group_id: int) -> list[Unit]:
        return [Unit(group_id, index) for index in range(self._schedule.group_size)]
