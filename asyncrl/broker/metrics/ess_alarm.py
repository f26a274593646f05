"""
Warning when few of the trained tokens are left to learn from, before the reward shows it.

    ess      1 ▔▔╲
    mean of      ╲___        ╱▔▔▔╲
    10 steps         ╲______╱     ╲      ess.low, once for each fall; the next one is armed when the mean has come
    bound   .7 ───────╳────────────╳──   halfway back to 1

The effective sample size of the ratios falls when old trajectories no longer represent the policy in training. A
collapse follows if nothing bounds the ratios; bench/RESULTS.md has runs that show how many steps later.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from math import isnan
from statistics import fmean

from asyncrl.config.config import Config

STEPS = 10
"""Steps of the mean: single steps fall below the bound in healthy runs too."""
EVENT = "ess.low"


class EssAlarm:
    """Checks the effective sample size of each step. The earlier ``lines`` of the run have raised their alarms."""

    def __init__(self, config: Config, lines: Iterable[Mapping[str, float]] = ()) -> None:
        self._bound = config.algorithm.ess_warn
        self._sizes: deque[float] = deque(maxlen=STEPS)
        self._is_armed = True
        for line in lines:
            self.check(line)

    def check(self, line: Mapping[str, float]) -> dict[str, float]:
        """Fields of the event, given the metrics of a new step; empty if there is nothing to warn about."""
        # NaN is read back as None, and its step is skipped; a step that trained on nothing has no ratios.
        if not (size := line.get("ess")) or isnan(size):
            return {}
        self._sizes.append(size)
        mean = fmean(self._sizes)
        if mean > (1 + self._bound) / 2:
            self._is_armed = True
        if not self._is_armed or len(self._sizes) < STEPS or mean >= self._bound:
            return {}
        self._is_armed = False
        return {"step": line["step"], "ess": round(mean, 4), "bound": self._bound}


def advice(config: Config) -> str:
    """The settings to change, in a sentence."""
    schedule, trainer = config.schedule, config.trainer
    remedies = [f"lower trainer.lr (now {trainer.lr:g})"]
    if schedule.staleness_bound:
        remedies.insert(0, f"lower schedule.staleness (now {schedule.staleness_bound:g})")
    if (updates := trainer.epochs * trainer.mini_batches) > 1:
        remedies.append(f"make fewer updates per batch (trainer.epochs and mini_batches, now {updates})")
    if not config.algorithm.correction.mask_divergent:
        remedies.append("set algorithm.correction.mask_divergent (such as 0.1)")
    return (
        "the trained trajectories are far from what the policy in training would write, and a few of their tokens "
        f"outweigh the others; {', or '.join(remedies)}"
    )
