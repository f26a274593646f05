"""
Judgement of whether a run learns, from the lines of its steps: one answer for alarms, states, `why`, pages and reports.

    signal      part of 1 of the trajectories whose reward differs from others of their group; 0 without a gradient
    success     accuracy of the batch if any completion is right, else its reward

    no signal   signal is below `LITTLE`
    solved      the same, after success has risen and nearly all completions are right: no trouble
    collapsed   success has fallen by more than half of its best
    cut         nearly all completions end at their limit, those that do are not right, and success has not risen
    learning    none of these; unknown before `FIRST_STEPS` steps

All are means of the last `RECENT` steps. A completion that is cut teaches as any other if rewards differ, so how many
are cut is no trouble by itself.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, Literal

from msgspec import Struct

from asyncrl.records.formatting import share
from asyncrl.records.measures import RECENT, number, recently

FIRST_STEPS = 3
"""Fewest steps that say something."""
LITTLE, ENOUGH = 0.1, 0.2
"""Signal below which a run learns next to nothing, and from which on it learns again."""
MOSTLY = 0.9
"""Share of completions that counts as nearly all of them."""
RISE = 0.05
"""Least change of success that is told from chance; of rewards beyond 1, a tenth of the largest."""
PATIENCE = 2 * RECENT
"""Number of steps within which success need not have risen."""

State = Literal["unknown", "learning", "solved", "no signal", "collapsed", "cut"]
TROUBLES: tuple[State, ...] = ("no signal", "collapsed", "cut")


class Judgement(Struct, frozen=True):
    """State of a run's learning; ``because`` is a clause, empty of a run that learns."""

    state: State
    because: str = ""

    @property
    def is_trouble(self) -> bool:
        return self.state in TROUBLES


class _Course:
    """Keeps means of a metric over `RECENT` steps: the first, the last and the best, and the largest absolute one."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=RECENT)
        self.first: float | None = None
        self.best = self.largest = 0.0

    def add(self, value: float) -> None:
        self._values.append(value)
        if len(self._values) < RECENT:
            return
        if self.first is None:
            self.first = self.best = self.now
        self.best, self.largest = max(self.best, self.now), max(self.largest, abs(self.now))

    @property
    def now(self) -> float:
        return fmean(self._values) if self._values else 0.0

    @property
    def has_risen(self) -> bool:
        return self.first is not None and self.now - self.first >= max(RISE, self.largest / 10)

    @property
    def has_collapsed(self) -> bool:
        return self.first is not None and self.best - self.now > max(RISE, self.largest / 2)


class Learning:
    """Judges a run by the lines of metrics.jsonl, added in order; its memory does not grow with them."""

    def __init__(self, lines: Iterable[Mapping[str, Any]] = ()) -> None:
        self._accuracy, self._reward, self._cut, self._equal, self._signal = (_Course() for _ in range(5))
        self._num_steps = 0
        self._is_silent = False
        for line in lines:
            self.add(line)

    def add(self, line: Mapping[str, Any]) -> None:
        for name, course in (("accuracy", self._accuracy), ("reward", self._reward), ("truncated", self._cut)):
            if (value := number(line, name)) is not None:
                course.add(value)
        if (equal := number(line, "zero_advantage_fraction")) is None:
            return
        self._num_steps += 1
        self._equal.add(equal)
        self._signal.add(0.0 if number(line, "grad_norm") == 0 else 1.0 - equal)
        bound = ENOUGH if self._is_silent else LITTLE
        self._is_silent = self._num_steps >= FIRST_STEPS and round(self._signal.now, 6) < bound

    @property
    def judgement(self) -> Judgement:
        if self._num_steps < FIRST_STEPS:
            return Judgement("unknown")
        is_right = 0 < max(self._accuracy.largest, self._accuracy.now) <= 1
        name, course = ("accuracy", self._accuracy) if is_right else ("reward", self._reward)
        now, best = (share(value) if is_right else f"{value:.3g}" for value in (course.now, course.best))
        span = recently(self._num_steps)
        if self._is_silent and is_right and course.has_risen and course.now >= MOSTLY:
            return Judgement("solved", f"{now} of the completions of the {span} were right, so few groups can teach")
        if course.has_collapsed:
            return Judgement("collapsed", f"the mean {name} of the {span} has fallen to {now}, from {best} at best")
        if self._is_silent:
            what, why = f"{share(self._equal.now)} of the completions", "all rewards of their group were equal"
            if self._equal.now < 1 - ENOUGH:
                what, why = "most", "their gradient was 0"
            rewarded = f"the mean reward was {self._reward.now:.3g}"
            return Judgement("no signal", f"{what} of the {span} taught nothing, because {why}; {rewarded}")
        are_right = is_right and course.now > 1 - self._cut.now + RISE
        if self._cut.now >= MOSTLY and self._num_steps >= PATIENCE and not course.has_risen and not are_right:
            told = f"{share(self._cut.now)} of the completions of the {span} were cut at their limit"
            return Judgement("cut", f"{told}, and the mean {name} has not risen")
        return Judgement("learning")
