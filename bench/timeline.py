"""
Timings, token counts and held-out accuracies of one contender of `loop.py`.

A pipeline samples batches ahead of the step that trains them. Its first steps wait for their batches, and its last ones
train what was sampled before: either would make a mean of few steps wrong, so the timed steps leave both out, and as
many batches are sampled as are trained while they last.

    steps      0   1   2   3   4   5   6   7        ahead = 1, of eight steps
    training   ───┼───┼───┼═══┼═══┼═══┼═══┼───
    sampling   1   2   3   4   5   6   7   none     timed: 3 to 6
"""

import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from cpu import CpuWatch
from msgspec import Struct
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from workload import Weights, Workload

from asyncrl.config.config import Config


class Timeline(Struct, frozen=True, kw_only=True):
    """Measurements of one run. Times are seconds since loading finished and the first step began, unless stated."""

    zero_s: float
    """Start of the clock in `time.monotonic`, which all processes of a machine share."""
    ends_s: list[float]
    """[steps] end of each step."""
    tokens: list[int]
    """[steps] completion tokens of each batch."""
    accuracies: list[tuple[int, float, float]]
    """(steps done, seconds, held-out accuracy)."""
    ahead: int
    """Batches that may be sampled before the step that trains them, `batches_ahead`; the same for all contenders."""
    notes: dict[str, float] = {}
    """Additional figures specific to this contender."""
    load_s: float = 0.0
    """Seconds from starting the command to the start of the clock."""
    cpu_s: dict[str, float] = {}
    """CPU seconds per timed step, by process name."""
    memory_gb: float = 0.0
    """Most memory of all processes together in the timed steps."""

    def step_s(self) -> float:
        """
        Mean seconds per timed step.

        Batches that are sampled together end together: a contender then has one long step and one of almost no time in
        turn, and the median is that of either.
        """
        return (self.ends_s[self._last] - self.ends_s[self._before]) / self._timed

    def tokens_per_s(self) -> float:
        """Completion tokens trained per second over the timed steps."""
        seconds = self.ends_s[self._last] - self.ends_s[self._before]
        return sum(self.tokens[self._before + 1 : self._last + 1]) / seconds

    def cpu_s_per_step(self) -> float:
        """CPU seconds per timed step of all processes."""
        return sum(self.cpu_s.values())

    def with_process_times(self, started_s: float, watch: CpuWatch) -> "Timeline":
        """A copy with load time, CPU time and memory, which are measured by the parent process."""
        start_s, end_s = self.zero_s + self.ends_s[self._before], self.zero_s + self.ends_s[self._last]
        return replace(
            self,
            load_s=self.zero_s - started_s,
            cpu_s={name: seconds / self._timed for name, seconds in watch.used(start_s, end_s).items()},
            memory_gb=watch.most_memory(start_s, end_s) / 1e9,
        )

    def seconds_to(self, accuracy: float) -> float | None:
        """Seconds until a policy first reached this held-out accuracy; None if no policy did."""
        return next((seconds for _, seconds, reached in self.accuracies if reached >= accuracy), None)

    @property
    def _before(self) -> int:
        """Step whose end begins the timed ones: halfway, because early completions are short."""
        return max(self.ahead, (len(self.ends_s) - self.ahead) // 2)

    @property
    def _last(self) -> int:
        return len(self.ends_s) - 1 - self.ahead

    @property
    def _timed(self) -> int:
        if (timed := self._last - self._before) < 1:
            raise SystemExit(
                f"run.steps is {len(self.ends_s)}: expected at least {2 * self.ahead + 2}, of which one is timed while "
                f"batches are sampled {self.ahead} ahead"
            )
        return timed


def batches_ahead(config: Config) -> int:
    """Batches that a run may sample before the step that trains them."""
    return math.ceil(config.schedule.window / config.schedule.groups_per_step) - 1


class Stopwatch:
    """
    Records a `Timeline` while a peer trains.

    Time spent copying and evaluating policies is not counted, and copies are kept on disk, not in the peer's memory.
    """

    def __init__(self, workload: Workload, weights: Callable[[], Weights]) -> None:
        """
        Args:
            weights: Returns a copy of the current policy.
        """
        self._workload = workload
        self._weights = weights
        self._every = workload.config.evaluation.every_versions
        self._zero_s = 0.0
        self._ends_s: list[float] = []
        self._tokens: list[int] = []
        self._kept: list[tuple[int, float, Path]] = []
        self._folder = TemporaryDirectory(prefix="asyncrl-bench-")

    def start(self) -> None:
        """Start the clock; call this when loading has finished."""
        self._keep(0, 0.0)
        self._zero_s = monotonic()

    def step_done(self, tokens: int) -> None:
        """Record one optimizer step on a batch of ``tokens`` completion tokens."""
        now_s = monotonic()
        self._ends_s.append(now_s - self._zero_s)
        self._tokens.append(tokens)
        done = len(self._ends_s)
        if done == self._workload.config.run.steps or (self._every and done % self._every == 0):
            self._keep(done, self._ends_s[-1])
            self._zero_s += monotonic() - now_s

    def timeline(self, **notes: float) -> Timeline:
        """Evaluate the recorded policies and return all measurements."""
        accuracies = self._workload.accuracies(load_file(path) for _, _, path in self._kept)
        self._folder.cleanup()
        return Timeline(
            zero_s=self._zero_s,
            ends_s=self._ends_s,
            tokens=self._tokens,
            accuracies=[(done, s, reached) for (done, s, _), reached in zip(self._kept, accuracies, strict=True)],
            notes=notes,
            ahead=batches_ahead(self._workload.config),
        )

    def _keep(self, done: int, seconds: float) -> None:
        path = Path(self._folder.name, f"{done}.safetensors")
        save_file({name: weight.contiguous() for name, weight in self._weights().items()}, path)
        self._kept.append((done, seconds, path))
