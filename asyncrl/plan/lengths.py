"""
Distributions of completion lengths: a truncated lognormal, or the lengths recorded by a run.

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

from asyncrl.errors import DataError

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


class Recorded(Struct, frozen=True):
    """Groups of a run, drawn whole and with replacement, which keeps the correlation within a group."""

    groups: Sequence[Sequence[int]]

    @property
    def mean(self) -> float:
        return sum(map(sum, self.groups)) / sum(map(len, self.groups))

    def group(self, rng: random.Random, size: int) -> list[int]:
        """A recorded group if it has ``size`` completions, otherwise ``size`` draws from it."""
        lengths = self.groups[rng.randrange(len(self.groups))]
        return list(lengths) if len(lengths) == size else [rng.choice(lengths) for _ in range(size)]


Lengths = Lognormal | Recorded


def read_samples(path: Path, newest: int | None = None) -> Recorded:
    """
    Lengths recorded in the ``samples`` folder of a run, or in one of its parquet files.

    ``newest`` limits the number of files, of one step each. Raises `DataError`.
    """
    import pyarrow as pa  # noqa: PLC0415 - takes 0.1 s, which other plans do not need
    import pyarrow.parquet as pq  # noqa: PLC0415

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
    return Recorded(list(groups.values()))
