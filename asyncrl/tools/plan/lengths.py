"""
Lengths of completions (a truncated lognormal, or those recorded by a run), and speeds of engines and trainers.

    log length = mu + sigma (sqrt(c) z_prompt + sqrt(1 - c) z_completion)        z ~ N(0, 1)

``c`` is the prompt's share of the variance. It matters because a step takes whole groups: sixteen long completions of
one prompt delay one group, those of sixteen prompts delay sixteen.
"""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist

from msgspec import Struct

from asyncrl.errors import ConfigError, DataError

Z99 = NormalDist().inv_cdf(0.99)


class Lognormal(Struct, frozen=True):
    """``exp(N(mu, sigma))``, clipped at ``max_tokens``."""

    mu: float
    sigma: float
    max_tokens: int
    prompt_share: float = 0.0
    """``c`` above: share of the log variance that completions of one prompt have in common."""

    @property
    def mean(self) -> float:
        """Mean after clipping."""
        if self.sigma == 0:
            return min(math.exp(self.mu), self.max_tokens)
        z = (math.log(self.max_tokens) - self.mu) / self.sigma
        below = math.exp(self.mu + self.sigma**2 / 2) * NormalDist().cdf(z - self.sigma)
        return below + self.max_tokens * NormalDist().cdf(-z)

    def group(self, rng: random.Random, size: int) -> list[int]:
        """[size] completion tokens, at least 1, of a randomly drawn prompt."""
        centre = self.mu + self.sigma * math.sqrt(self.prompt_share) * rng.gauss(0.0, 1.0)
        spread = self.sigma * math.sqrt(1 - self.prompt_share)
        return [self._clipped(centre + spread * rng.gauss(0.0, 1.0)) for _ in range(size)]

    def _clipped(self, log_length: float) -> int:
        return self.max_tokens if log_length >= math.log(self.max_tokens) else max(1, round(math.exp(log_length)))


class RecordedLengths(Struct, frozen=True):
    """Groups of a run, drawn whole and with replacement, which keeps the correlation within a group."""

    groups: Sequence[Sequence[int]]

    @property
    def mean(self) -> float:
        return sum(map(sum, self.groups)) / sum(map(len, self.groups))

    def group(self, rng: random.Random, size: int) -> list[int]:
        """A recorded group if it has ``size`` completions, otherwise ``size`` draws from it."""
        lengths = self.groups[rng.randrange(len(self.groups))]
        return list(lengths) if len(lengths) == size else [rng.choice(lengths) for _ in range(size)]


Lengths = Lognormal | RecordedLengths


def read_samples(path: Path, newest: int | None = None) -> RecordedLengths:
    """
    Lengths recorded in the ``samples`` folder of a run, or in one of its parquet files.

    ``newest`` limits the number of files, of one step each. Raises `DataError`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        raise DataError(f"lengths.samples: no such file or folder: {path}")
    files = sorted(path.glob("*.parquet"))[-newest if newest else 0 :] if path.is_dir() else [path]
    groups: dict[tuple[int, int], list[int]] = {}
    for file in files:
        try:
            columns = pq.read_table(file, columns=["step", "group_id", "num_tokens"]).to_pydict()
        except (OSError, KeyError, pa.ArrowException) as error:
            raise DataError(
                f"lengths.samples: {file} is not a samples file of a run: {str(error).splitlines()[0]}"
            ) from error
        for step, group_id, tokens in zip(*columns.values(), strict=True):
            groups.setdefault((step, group_id), []).append(max(tokens, 1))
    if not groups:
        raise DataError(f"lengths.samples: no trajectories in {path}: expected the samples folder of a run")
    return RecordedLengths(list(groups.values()))


# ── speeds ────────────────────────────────────────────────────────────────────────────────────
# Speeds of engines and trainers, interpolated between measured points.
#
#     decode     seconds per decode step = a + b x running             a: reading the weights   b: work per completion
#     training   seconds per token       = a + b / devices             a: the part that does not scale
#
# Both are piecewise linear through the measured points and extrapolate the outer segments. With a single decode point
# a step takes equally long for any number of completions; with a single training point speed is proportional to
# devices.

Point = tuple[float, float]


class PiecewiseLine(Struct, frozen=True):
    """Piecewise linear function; beyond the outer points it continues their segment."""

    points: Sequence[Point]
    """Ordered by x, each x once."""

    def at(self, x: float) -> float:
        """y at x, at least a thousandth of the smallest measured y, because extrapolation may fall below zero."""
        floor = min(y for _, y in self.points) / 1000
        if len(self.points) == 1:
            return self.points[0][1]
        place = next((i for i in range(1, len(self.points) - 1) if x <= self.points[i][0]), len(self.points) - 1)
        (x0, y0), (x1, y1) = self.points[place - 1], self.points[place]
        return max(y0 + (y1 - y0) * (x - x0) / (x1 - x0), floor)


def decode_line(points: Sequence[Point]) -> PiecewiseLine:
    """
    Seconds of one decode step by completions running, from points ``(running, tokens_per_s)`` of one replica.

    Raises ConfigError if two points have the same x, or a step gets faster with more completions.
    """
    line = _line([(running, running / tokens_per_s) for running, tokens_per_s in points], "rollout.decode")
    for (fewer, before_s), (more, after_s) in zip(line.points, line.points[1:], strict=False):
        if after_s < before_s:
            raise ConfigError(
                f"rollout.decode: a step takes {before_s:.4g} s with {fewer:g} running and {after_s:.4g} s with "
                f"{more:g}, but more cannot make it shorter: tokens_per_s is of a replica, not of one completion"
            )
    return line


class TrainingSpeed:
    """Training time as a function of tokens and devices, from points ``(devices, seconds per token)``."""

    def __init__(self, points: Sequence[Point]) -> None:
        if len(points) == 1:
            devices, seconds = points[0]
            points = [(devices, seconds), (2 * devices, seconds / 2)]
        self._line = _line([(1 / devices, seconds) for devices, seconds in points], "trainer.speeds")

    def seconds(self, tokens: float, devices: int) -> float:
        return tokens * self._line.at(1 / devices)


def _line(points: Sequence[Point], key: str) -> PiecewiseLine:
    ordered = sorted(points)
    if len({x for x, _ in ordered}) < len(ordered):
        raise ConfigError(f"{key}: two points have the same first number; keep one of them")
    return PiecewiseLine(ordered)
