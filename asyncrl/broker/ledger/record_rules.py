"""
Rules for each record of a ledger, judged by the records before it.

    Admitted, Restarted    at the version that was live
    Result                 if it is used: tokens of versions that existed by then, none older than its group
    Rewarded               after its result, of the same restart; finite numbers
    Taken                  once; each trajectory rewarded, and within the staleness that the schedule promises
    Committed              a later step than before, which was taken
    VersionLive            a newer version, of steps that were taken
    Measured               of a version that was live; a finite accuracy
"""

import math
from collections.abc import Iterator, Mapping

from asyncrl.broker.ledger.record_book import RecordBook
from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Measured,
    Restarted,
    Result,
    Rewarded,
    Taken,
    Untrained,
    VersionLive,
)
from asyncrl.config.sections.schedule import Schedule
from asyncrl.messages.trajectory import Unit


class RecordRules:
    """Add every record in order; ``book`` has the state at the end."""

    def __init__(self, schedule: Schedule, num_greedy: int = 0) -> None:
        self.book = RecordBook(schedule, num_greedy)
        self._problems: list[str] = []
        self._of_taken: dict[int, list[str]] = {}
        """Sentences about trajectories of a batch, by group: the trainer may still leave the group out."""
        self._doubts: dict[Unit, list[str]] = {}
        """Sentences about results. They count once the trajectory is trained on or evaluated; until then it is only a
        node's claim, which may still be thrown away."""

    @property
    def problems(self) -> list[str]:
        """A sentence for each violation."""
        return [*self._problems, *(problem for group in self._of_taken.values() for problem in group)]

    def add(self, record: AnyRecord) -> None:
        self._problems += self._judged(record)
        if isinstance(record, Untrained):
            self._of_taken.pop(record.group_id, None)
        self.book.add(record)

    def _judged(self, record: AnyRecord) -> Iterator[str]:
        match record:
            case Admitted() | Restarted():
                yield from self._at_live_version(record)
            case Result(unit=unit):
                self._doubts[unit] = list(self._result(record))
            case Rewarded():
                yield from self._rewarded(record)
            case Taken():
                yield from self._taken(record)
            case Committed():
                yield from self._committed(record)
            case VersionLive():
                yield from self._live(record)
            case Measured():
                yield from self._measured(record)
            case _:
                pass  # Nothing follows from the other records.

    def _at_live_version(self, record: Admitted | Restarted) -> Iterator[str]:
        live = self.book.versions.live_version
        if record.policy_version != live:
            how = "admitted" if isinstance(record, Admitted) else "restarted"
            yield f"group {record.group_id} was {how} at version {record.policy_version}: expected the live one, {live}"

    def _result(self, record: Result) -> Iterator[str]:
        unit, summary = record.unit, record.summary
        oldest, newest = summary.oldest_version, summary.newest_version
        # A version is staged once every step that it contains is trained, and those steps were taken before.
        latest = max(self.book.versions.of_step(self.book.next_step), self.book.versions.live_version)
        if not 0 <= oldest <= newest <= latest:
            yield (
                f"{unit_name(unit)} has tokens of the versions {oldest} to {newest}: expected versions from 0 to "
                f"{latest}, which existed by then"
            )
        if unit.split == "train" and oldest < (least := self.book.min_versions.get(unit.group_id, 0)):
            yield (
                f"{unit_name(unit)} has tokens of version {oldest}: expected none older than its group, admitted or "
                f"restarted at version {least}"
            )
        if unit.split == "train" and record.num_restarts != (restarts := self.book.restarts[unit.group_id]):
            yield f"{unit_name(unit)} has a result of restart {record.num_restarts}: expected restart {restarts}"

    def _rewarded(self, record: Rewarded) -> Iterator[str]:
        unit = record.unit
        for name, value in _not_finite({"reward": record.reward, **record.metrics}):
            yield f"{unit_name(unit)} has the {name} {value}: expected a finite number"
        if (result := self.book.results.get(unit)) is None:
            yield f"{unit_name(unit)} was rewarded before it had a result"
        elif unit.split == "held_out":
            yield from self._doubts.pop(unit, ())
        elif result.num_restarts != record.num_restarts:
            yield (
                f"{unit_name(unit)} has a reward of restart {record.num_restarts}, but its result is of restart "
                f"{result.num_restarts}"
            )

    def _taken(self, record: Taken) -> Iterator[str]:
        if record.step in self.book.steps:
            yield f"step {record.step} was taken twice"
        for group_id in record.group_ids:
            self._of_taken[group_id] = [*self._of_taken.get(group_id, []), *self._taken_group(record.step, group_id)]

    def _taken_group(self, step: int, group_id: int) -> Iterator[str]:
        version = self.book.versions.of_step(step)
        for unit in self.book.units(group_id):
            if (result := self.book.results.get(unit)) is None:
                continue  # Counted by the audit as trained without a result.
            if unit not in self.book.rewards:
                yield f"{unit_name(unit)} was taken by step {step} before it had a reward"
            yield from self._doubts.pop(unit, ())
            yield from self._stale(step, version, result)

    def _stale(self, step: int, version: int, result: Result) -> Iterator[str]:
        summary, bound = result.summary, self.book.bounds.of(result.unit.group_id)
        staleness, newest = version - summary.oldest_version, summary.newest_version
        if bound is not None and staleness > bound:
            yield (
                f"{unit_name(result.unit)} is stale beyond its bound: step {step} trains version {version} on tokens "
                f"of version {summary.oldest_version}, expected at most {bound} versions between them, got {staleness}"
            )
        if newest > version:
            yield (
                f"{unit_name(result.unit)} has tokens of version {newest}, newer than version {version}, which step "
                f"{step} trains"
            )

    def _committed(self, record: Committed) -> Iterator[str]:
        step, before, taken = record.step, self.book.committed_step, self.book.next_step
        if step >= taken:
            yield f"step {step} was committed, but only {taken} steps were taken"
        if step <= before:
            yield f"step {step} was committed after step {before}: expected a later one"

    def _live(self, record: VersionLive) -> Iterator[str]:
        if problem := self.book.versions.problem(record):
            yield problem
        if record.next_step > self.book.next_step:
            yield (
                f"version {record.policy_version} contains {record.next_step} steps, but only {self.book.next_step} "
                f"steps were taken"
            )

    def _measured(self, record: Measured) -> Iterator[str]:
        if record.policy_version not in self.book.versions.live:
            yield f"version {record.policy_version} was evaluated, but never went live"
        if record.num_prompts and not math.isfinite(record.accuracy):  # Without prompts nothing was measured.
            yield f"version {record.policy_version} has the accuracy {record.accuracy}: expected a finite number"


def unit_name(unit: Unit) -> str:
    """Name of a trajectory in messages."""
    return f"unit {unit.group_id}/{unit.index}{' (held-out)' if unit.split == 'held_out' else ''}"


def _not_finite(numbers: Mapping[str, float]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in numbers.items() if not math.isfinite(value)]
