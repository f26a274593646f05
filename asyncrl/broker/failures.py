"""Failures of a run: units by cause, reports that no node can honestly make, and steps that fail again."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from asyncrl.config.config import Config
from asyncrl.errors import RunFailed
from asyncrl.foreign_text import escaped
from asyncrl.messages.codec import Message
from asyncrl.messages.trainer import Commit, Resumed, StepFailed, Stepped, Take
from asyncrl.messages.weights import Live, Publishing, Transferred, Uploaded
from asyncrl.records.events import EventKind
from asyncrl.records.failure_sentences import COUNTED_AS, OTHERS, RaisedError, attempts_at, sentences
from asyncrl.records.formatting import nth

# ── units ─────────────────────────────────────────────────────────────────────────────────────
# Failed units counted by cause, so that a broken reward is seen while the run goes on.
#
#     count("reward", "ValueError: no number in '17' (score.py:12)") ─┐
#     count("reward", "ValueError: no number in '4' (score.py:12)") ──┴─▶ "reward: ValueError: no number in '17' (…)" 2
#                                                                             │
#                `units.failed` events, at doubling intervals ◀───────────────┼──▶ `Failures` to the supervisor's screen
#                                                                             └──▶ metrics of a step, summary.json
#
# Exceptions of one type from one line of code are one cause, and so are other reasons that differ in numbers, ids or
# quoted values only. It is named by the first of them.

MAX_CAUSES = 32
"""Causes that are told apart; any further one is counted as one of ``OTHERS``."""
MAX_CHARS = 160
"""Length of the name of a cause; the place of an exception may make it longer."""
READ_CHARS = 2048
"""Characters of a reason that are looked at: `asyncrl.plug_in.describe` writes fewer."""
FIRST_S, LONGEST_S = 10.0, 600.0
"""Seconds between the first two events of one cause, which double up to the second number."""
SHOWN_S = 1.0
"""Seconds between two messages to a supervisor."""
EVENT: EventKind = "units.failed"
ATTEMPTED = ("rollout", "environment", "reward")
"""Stages whose attempts are counted when they succeed, too."""

_VARYING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|[-+]?\d[\d.,_]*(?:e[-+]?\d+)?|'[^']*'|\"[^\"]*\"")


class _Cause(Struct):
    name: str
    count: int = 0
    told: int = 0
    """Count in the last event."""
    due_s: float = 0.0
    """Earliest time of the next event."""
    pause_s: float = FIRST_S


class FailureBook:
    """Counts by cause, and when to tell them to whom. ``now_s`` is the scheduler's time."""

    def __init__(self) -> None:
        self._causes: dict[str, _Cause] = {}
        self._attempts: dict[str, int] = {}
        self._shown = 0
        self._show_due_s = 0.0
        self._at_last_step = 0

    def count(self, stage: str, reason: str, number: int = 1) -> None:
        """Count failed units: ``stage`` is where they failed, such as ``reward``, and ``reason`` any text."""
        name, key = _name(stage, reason), cause_key(stage, reason)
        if key not in self._causes and len(self._causes) >= MAX_CAUSES:
            key = name = OTHERS
        self._causes.setdefault(key, _Cause(name)).count += number
        if stage in ATTEMPTED:
            self.attempted(stage, number)

    def attempted(self, stage: str, number: int = 1) -> None:
        """Count attempts, so that failures are told as a part of all; `count` counts those that failed."""
        self._attempts[COUNTED_AS.get(stage, stage)] = attempts_at(stage, self._attempts) + number

    @property
    def counts(self) -> dict[str, int]:
        """Failures by cause, ``stage: reason``, most frequent first."""
        found = {cause.name: cause.count for cause in self._causes.values()}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def attempts(self) -> dict[str, int]:
        """Attempts by stage, the failed ones included."""
        return dict(self._attempts)

    def sentences(self) -> list[str]:
        """The most frequent causes in words; see `asyncrl.records.failure_sentences`."""
        return sentences(self.counts, self._attempts)

    @property
    def total(self) -> int:
        return sum(cause.count for cause in self._causes.values())

    def since_last_step(self) -> int:
        """Failed units by cause since the last call, for the metrics of a step."""
        before, self._at_last_step = self._at_last_step, self.total
        return self.total - before

    def events(self, now_s: float, *, is_over: bool = False) -> list[dict[str, Any]]:
        """Fields of the events that are due: of a new cause at once, of others rarely; ``is_over`` tells the rest."""
        found = []
        for cause in self._causes.values():
            if cause.count > cause.told and (is_over or now_s >= cause.due_s):
                cause.told, cause.due_s = cause.count, now_s + cause.pause_s
                cause.pause_s = min(2 * cause.pause_s, LONGEST_S)
                stage, _, text = cause.name.partition(": ")
                of = attempts_at(stage, self._attempts)
                found.append({"stage": stage, "cause": text, "count": cause.count, "of": of})
        return found

    def news(self, now_s: float) -> dict[str, int]:
        """
        Counts by cause for a supervisor's screen, if they changed since the last call, at most once in `SHOWN_S`; else
        none.
        """
        if self.total == self._shown or now_s < self._show_due_s:
            return {}
        self._shown, self._show_due_s = self.total, now_s + SHOWN_S
        return self.counts

    def restore(self, counts: Mapping[str, int], attempts: Mapping[str, int]) -> None:
        """Continue with counts of an earlier life of the broker, which `recorded` and `recorded_attempts` read."""
        self._attempts = dict(attempts)
        for name, count in counts.items():
            known = self._causes.setdefault(_key(name), _Cause(name))
            known.count += count
            known.told = known.count
        self._at_last_step = self.total


def cause_key(stage: str, reason: str) -> str:
    """Key of a cause: the text that all its reasons have in common."""
    return _key(_name(stage, reason))


def recorded(events: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Counts by cause in a run's events: each event of a cause has its whole count."""
    told = [event for event in events if event.get("event") == EVENT]
    counts = {f"{event['stage']}: {event['cause']}": int(event["count"]) for event in told}
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def recorded_attempts(events: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Attempts by stage in a run's events, as of the last event about each stage."""
    attempts: dict[str, int] = {}
    for event in events:
        if event.get("event") == EVENT and "of" in event:
            stage = str(event["stage"])
            attempts[COUNTED_AS.get(stage, stage)] = max(attempts_at(stage, attempts), int(event["of"]))
    return attempts


def _name(stage: str, reason: str) -> str:
    """Name of the cause that a reason belongs to, if it is the first of it."""
    line = escaped(" ".join(reason[:READ_CHARS].split()))
    raised = RaisedError.read(line)
    return f"{stage}: {raised.within(MAX_CHARS) if raised and raised.place else line[:MAX_CHARS]}"


def _key(name: str) -> str:
    """Text that all names of a cause have in common."""
    stage, _, reason = name.partition(": ")
    raised = RaisedError.read(reason)
    return f"{stage}: {raised.site}" if raised and raised.site else _VARYING.sub("#", name)


# ── progress check ────────────────────────────────────────────────────────────────────────────
# Steps and versions that a node can report at this point of a run, whatever its code does.

REPORTS = frozenset((Commit, Live, Publishing, Resumed, StepFailed, Stepped, Take, Transferred, Uploaded))
"""Messages that name a step or a version."""


class ProgressCheck:
    """Compares reports with the run's length, the batches taken so far and the versions published so far."""

    def __init__(self, config: Config) -> None:
        self._steps = config.run.steps
        self._steps_per_publish = config.schedule.steps_per_publish

    def problem_of(self, message: Message, *, next_step: int, newest_version: int) -> str:
        """
        Description of a report that cannot be true; empty if it can.

        Args:
            next_step: First step whose batch was not taken yet.
            newest_version: Newest version that was offered or is live; -1 if none.
        """
        match message:
            case Take(step=step) if step > next_step or step >= self._steps:
                return f"step {nth(step)} cannot be next: the batch of step {nth(next_step)} was not taken yet"
            case Commit(step=step) | Stepped(step=step) | StepFailed(step=step) if step >= next_step:
                return f"step {nth(step)} cannot be done: the batch of step {nth(next_step)} was not taken yet"
            case Resumed(steps=done) if done > next_step:
                return f"{done} steps cannot be done: the batch of step {nth(next_step)} was not taken yet"
            case Publishing(policy_version=version, next_step=done):
                return self._publishing(version, done, next_step)
            case (
                Live(policy_version=version) | Transferred(policy_version=version) | Uploaded(policy_version=version)
            ) if version > newest_version:
                return f"version {version} does not exist: the newest is {newest_version}"
            case _:
                return ""

    def _publishing(self, version: int, done: int, next_step: int) -> str:
        if done > next_step:
            return (
                f"version {version} cannot contain {done} steps: the batch of step {nth(next_step)} was not taken yet"
            )
        # A trainer that resumes between two publishes offers the weights of its checkpoint under the last version.
        fewest, most = done // self._steps_per_publish, -(-done // self._steps_per_publish)
        return "" if fewest <= version <= most else f"version {version} cannot be the one after {done} steps"


# ── step failures ─────────────────────────────────────────────────────────────────────────────
# Steps at which the trainer fails for a reason that another start of it would meet again.
#
#     StepFailed(12, "ValueError: ...") ─▶ the trainer starts again, from its checkpoint ─┬─▶ Stepped(12): forgotten
#                                                                                        └─▶ the same: the run ends
#
# Remembered by the broker, so it outlives the trainer's process; a run that is resumed begins without it, because its
# operator may have mended the cause. A trainer that is killed gives no reason, and is started again as ever.


class StepFailures:
    """Failures in this life of the broker. Reasons that differ in numbers or quoted values only are the same."""

    def __init__(self) -> None:
        self._causes: dict[int, set[str]] = {}
        """Causes of each step that was not done since."""

    def failed(self, step: int, reason: str) -> None:
        """Note a failure; raises `RunFailed` if the step has failed for this reason before."""
        causes, cause = self._causes.setdefault(step, set()), cause_key("trainer", reason)
        if cause in causes:
            raise RunFailed(
                f"the trainer failed twice at step {nth(step)} for the same reason: {' '.join(reason.split())}; "
                f"mend the cause and resume the run, or have it leave out the batch of that step: asyncrl resume RUN "
                f"--skip-step {nth(step)}"
            )
        causes.add(cause)

    def done(self, step: int) -> None:
        """Forget the failures of a step that the trainer has done."""
        self._causes.pop(step, None)
