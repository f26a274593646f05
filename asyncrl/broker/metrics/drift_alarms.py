"""
Warnings that the policy in training has moved far from the one that sampled, before the reward shows it.

    ess      1 ▔▔╲
    mean of      ╲___        ╱▔▔▔╲
    10 steps         ╲______╱     ╲      ess.low, once for each fall; the next one is armed when the mean has come
    bound   .7 ───────╳────────────╳──   halfway back to 1

The effective sample size of the ratios falls when a few tokens outweigh all others: a collapse follows if nothing
bounds the ratios. The share of clipped tokens rises where the loss bounds them: those tokens teach nothing, and the run
is safe and slow. bench/RESULTS.md has runs that show both.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from math import isnan
from statistics import fmean

from asyncrl.config.clipping import WIDE, clips_to_sampler, with_clip_high
from asyncrl.config.config import Config

STEPS = 10
"""Steps of the mean: single steps exceed the bound in healthy runs too."""
LEARNS_FROM_CLIPPED = ("cispo", "gspo")
"""Losses that are not warned about: one learns from clipped tokens too, the other clips many by design."""
Line = Mapping[str, float]


class DriftAlarm:
    """
    Warns about the mean of a metric.

    Args:
        healthy: Value of the metric when both policies are the same.
        bound: Mean from which on it warns, on the side away from ``healthy``.
        lines: Earlier steps of the run, which have raised their alarms.
    """

    def __init__(self, metric: str, *, healthy: float, bound: float, lines: Iterable[Line] = ()) -> None:
        self._metric = metric
        self._healthy = healthy
        self._bound = bound
        self._values: deque[float] = deque(maxlen=STEPS)
        self._is_armed = True
        for line in lines:
            self.check(line)

    def check(self, line: Line) -> dict[str, float]:
        """Fields of the event, given the metrics of a new step; empty if there is nothing to warn about."""
        value = line.get(self._metric)
        # NaN is read back as None, and its step is skipped; a step that trained on nothing has no ratios.
        if value is None or isnan(value) or not line.get("ess"):
            return {}
        self._values.append(value)
        mean, limit = fmean(self._values), abs(self._bound - self._healthy)
        if abs(mean - self._healthy) < limit / 2:
            self._is_armed = True
        if not self._is_armed or len(self._values) < STEPS or abs(mean - self._healthy) <= limit:
            return {}
        self._is_armed = False
        return {"step": line["step"], self._metric: round(mean, 4), "bound": self._bound}


def ess_alarm(config: Config, lines: Iterable[Line] = ()) -> DriftAlarm:
    """Warns when few of the trained tokens are left to learn from."""
    return DriftAlarm("ess", healthy=1.0, bound=config.algorithm.ess_warn, lines=lines)


def clip_alarm(config: Config, lines: Iterable[Line] = ()) -> DriftAlarm:
    """Warns when the loss clips many tokens."""
    algorithm = config.algorithm
    bound = 1.0 if algorithm.loss in LEARNS_FROM_CLIPPED else algorithm.clip_warn
    return DriftAlarm("clip_fraction", healthy=0.0, bound=bound, lines=lines)


class DriftAlarms:
    """All of them. The earlier ``lines`` of the run have raised their alarms."""

    def __init__(self, config: Config, lines: Iterable[Line] = ()) -> None:
        lines = list(lines)
        self._alarms = {"ess.low": ess_alarm(config, lines), "clip.high": clip_alarm(config, lines)}

    def check(self, line: Line, config: Config) -> Iterator[tuple[str, dict[str, float | str]]]:
        """Kind and fields of each event of a new step; ``config`` has the settings that hold now."""
        for kind, alarm in self._alarms.items():
            if fields := alarm.check(line):
                yield kind, {**fields, "advice": advice(kind, config)}


def advice(kind: str, config: Config) -> str:
    """Meaning of the event, and the settings to change, in a sentence."""
    schedule, trainer, algorithm = config.schedule, config.trainer, with_clip_high(config)
    remedies = [f"lower trainer.lr (now {trainer.lr:g})"]
    if schedule.staleness_bound:
        remedies.insert(0, f"lower schedule.staleness (now {schedule.staleness_bound:g})")
    if (updates := trainer.epochs * trainer.mini_batches) > 1:
        remedies.append(f"make fewer updates per batch (trainer.epochs and mini_batches, now {updates})")
    if kind == "clip.high":
        meaning = (
            "the policy moves far between sampling and training; clipped tokens teach nothing, so it learns slowly"
        )
        if clips_to_sampler(config.algorithm) and (algorithm.clip_high or 0.0) < WIDE:
            remedies.append(f"widen the bound (algorithm.clip_high, such as {WIDE:g})")
    else:
        meaning = (
            "the trained trajectories are far from what the policy in training would write, and a few of their tokens "
            "outweigh the others"
        )
        if not algorithm.sampler_kl_coef:
            remedies.append("set algorithm.sampler_kl_coef (such as 0.1)")
        if not algorithm.correction.mask_divergent:
            remedies.append("set algorithm.correction.mask_divergent (such as 0.1)")
    return f"{meaning}; {', or '.join(remedies)}"
