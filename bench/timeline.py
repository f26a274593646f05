"""Timings, token counts and held-out accuracies of one contender of `loop.py`."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from cpu import CpuWatch
from msgspec import Struct
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from workload import Weights, Workload


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
    notes: dict[str, float] = {}
    """Additional figures specific to this contender."""
    load_s: float = 0.0
    """Seconds from starting the command to the start of the clock."""
    cpu_s: dict[str, float] = {}
    """CPU seconds per step over the second half, by process name."""
    memory_gb: float = 0.0
    """Most memory of all processes together in the second half."""

    def step_s(self) -> float:
        """
        Mean seconds per step over the second half.

        Batches that are sampled together end together: a contender then has one long step and one of almost no time in
        turn, and the median is that of either.
        """
        return (self.ends_s[-1] - self.ends_s[self._half]) / (len(self.ends_s) - 1 - self._half)

    def tokens_per_s(self) -> float:
        """Completion tokens trained per second over the second half."""
        return sum(self.tokens[self._half + 1 :]) / (self.ends_s[-1] - self.ends_s[self._half])

    def cpu_s_per_step(self) -> float:
        """CPU seconds per step of all processes over the second half."""
        return sum(self.cpu_s.values())

    def with_process_times(self, started_s: float, watch: CpuWatch) -> "Timeline":
        """A copy with load time, CPU time and memory, which are measured by the parent process."""
        start_s, end_s = self.zero_s + self.ends_s[self._half], self.zero_s + self.ends_s[-1]
        steps = len(self.ends_s) - 1 - self._half
        return replace(
            self,
            load_s=self.zero_s - started_s,
            cpu_s={name: seconds / steps for name, seconds in watch.used(start_s, end_s).items()},
            memory_gb=watch.most_memory(start_s, end_s) / 1e9,
        )

    def seconds_to(self, accuracy: float) -> float | None:
        """Seconds until a policy first reached this held-out accuracy; None if no policy did."""
        return next((seconds for _, seconds, reached in self.accuracies if reached >= accuracy), None)

    @property
    def _half(self) -> int:
        """Number of steps in the first half, where completions are short because chains are not yet learned."""
        return len(self.ends_s) // 2


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
        )

    def _keep(self, done: int, seconds: float) -> None:
        path = Path(self._folder.name, f"{done}.safetensors")
        save_file({name: weight.contiguous() for name, weight in self._weights().items()}, path)
        self._kept.append((done, seconds, path))
