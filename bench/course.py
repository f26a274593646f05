"""What one contender of `loop.py` did: when each step ended, what it trained on, and what it could do on the way."""

from collections.abc import Callable
from itertools import pairwise
from statistics import median
from time import monotonic

from cpu import CpuWatch
from lesson import Lesson, Weights
from msgspec import Struct
from msgspec.structs import replace


class Course(Struct, frozen=True, kw_only=True):
    """A run. The clock starts when everything is loaded and the first step begins."""

    zero_s: float
    """When the clock started, by `time.monotonic`, which all processes of a machine share."""
    ends_s: list[float]
    """When each step ended."""
    tokens: list[int]
    """Completion tokens of each step's batch."""
    accuracies: list[tuple[int, float, float]]
    """(steps done, seconds, held-out accuracy)."""
    notes: dict[str, float] = {}
    """Further numbers of this contender alone."""
    load_s: float = 0.0
    """From the command to the start of the clock."""
    cpu_s: dict[str, float] = {}
    """CPU seconds a step over the second half, by process."""

    def step_s(self) -> float:
        """Median seconds of a step, over the second half."""
        return median(after - before for before, after in pairwise(self.ends_s[self._half :]))

    def tokens_per_s(self) -> float:
        """Completion tokens trained a second, over the second half."""
        return sum(self.tokens[self._half + 1 :]) / (self.ends_s[-1] - self.ends_s[self._half])

    def cpu_s_per_step(self) -> float:
        """Of all processes."""
        return sum(self.cpu_s.values())

    def seen(self, started_s: float, watch: CpuWatch) -> "Course":
        """The same with what is only known from outside."""
        used = watch.used(self.zero_s + self.ends_s[self._half], self.zero_s + self.ends_s[-1])
        steps = len(self.ends_s) - 1 - self._half
        return replace(
            self, load_s=self.zero_s - started_s, cpu_s={name: seconds / steps for name, seconds in used.items()}
        )

    def seconds_to(self, accuracy: float) -> float | None:
        """Until a policy first had this held-out accuracy; None if it never did."""
        return next((seconds for _, seconds, reached in self.accuracies if reached >= accuracy), None)

    @property
    def _half(self) -> int:
        """The first half is another task: completions are short until the policy has learned to write chains."""
        return len(self.ends_s) // 2


class Stopwatch:
    """Keeps a `Course` while a peer trains. Copying and examining policies is not on the clock."""

    def __init__(self, lesson: Lesson, weights: Callable[[], Weights]) -> None:
        """
        Args:
            weights: A copy of the policy as it is now.
        """
        self._lesson = lesson
        self._weights = weights
        self._every = lesson.config.evaluation.every_versions
        self._zero_s = 0.0
        self._ends_s: list[float] = []
        self._tokens: list[int] = []
        self._kept: list[tuple[int, float, Weights]] = []

    def start(self) -> None:
        """Everything is loaded."""
        self._kept.append((0, 0.0, self._weights()))
        self._zero_s = monotonic()

    def step_done(self, tokens: int) -> None:
        """One optimizer step on a batch of so many completion tokens."""
        now_s = monotonic()
        self._ends_s.append(now_s - self._zero_s)
        self._tokens.append(tokens)
        done = len(self._ends_s)
        if done == self._lesson.config.run.steps or (self._every and done % self._every == 0):
            self._kept.append((done, self._ends_s[-1], self._weights()))
            self._zero_s += monotonic() - now_s

    def course(self, **notes: float) -> Course:
        """Examine the policies that were kept, and sum up."""
        accuracies = self._lesson.accuracies([weights for _, _, weights in self._kept])
        return Course(
            zero_s=self._zero_s,
            ends_s=self._ends_s,
            tokens=self._tokens,
            accuracies=[(done, s, reached) for (done, s, _), reached in zip(self._kept, accuracies, strict=True)],
            notes=notes,
        )
