"""Inputs of a simulation, derived from a plan: the length distribution and the speed functions."""

import math
from functools import partial
from pathlib import Path

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.plan.lengths import Z99, Lengths, Lognormal, read_samples
from asyncrl.plan.sections import Plan
from asyncrl.plan.simulated.colocated import generate_s
from asyncrl.plan.speeds import Line, TrainingSpeed, decode_line

CLOSE = 1e-3
"""Relative tolerance of the fit to the measured seconds."""
HALVINGS = 40


class Inputs(Struct, frozen=True):
    lengths: Lengths
    step_s: Line
    """Seconds per decode step as a function of the completions running on a replica."""
    training: TrainingSpeed


def inputs(plan: Plan, lengths: Lengths | None = None) -> Inputs:
    """
    Derive a plan's inputs; a fit takes seconds.

    Args:
        lengths: Those of the plan, if they are known already.

    Raises:
        ConfigError: No median fits.
        DataError: The lengths cannot be read.
    """
    step_s = decode_line(plan.rollout.decode)
    if lengths is None:
        lengths = _lengths(plan, step_s)
    return Inputs(lengths, step_s, _training(plan, lengths))


def _lengths(plan: Plan, step_s: Line) -> Lengths:
    given = plan.lengths
    if given.samples:
        return read_samples(Path(given.samples))
    if given.synchronous_generate_s:
        return _fitted(plan, step_s)
    if given.p99:
        return _lognormal(plan, given.median, math.log(given.p99 / given.median) / Z99)
    median = given.median or given.mean / math.exp(given.sigma**2 / 2)
    return _lognormal(plan, median, given.sigma)


def _lognormal(plan: Plan, median: float, sigma: float) -> Lognormal:
    return Lognormal(math.log(median), sigma, plan.lengths.max_tokens, plan.lengths.prompt_share)


def _fitted(plan: Plan, step_s: Line) -> Lognormal:
    """Bisect for the median with which the baseline generates for the measured seconds, which grow with the median."""
    wanted_s, sigma = plan.lengths.synchronous_generate_s, plan.lengths.sigma
    generate = partial(generate_s, plan, step_s=step_s)
    low, high = 0.0, math.log(plan.lengths.max_tokens)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        lengths = _lognormal(plan, math.exp(middle), sigma)
        seconds = generate(lengths=lengths)
        if abs(seconds - wanted_s) <= CLOSE * wanted_s:
            return lengths
        low, high = (middle, high) if seconds < wanted_s else (low, middle)
    raise ConfigError(
        f"lengths.synchronous_generate_s is {wanted_s:g} s, but with these decode speeds and sigma = {sigma:g} the "
        f"baseline takes {seconds:.4g} s at the nearest median, {lengths.mean:.0f} tokens on average; change "
        f"rollout.decode, sigma or max_tokens"
    )


def _training(plan: Plan, lengths: Lengths) -> TrainingSpeed:
    tokens = lengths.mean + plan.rollout.prompt_tokens
    points = []
    for speed in plan.trainer.speeds:
        trained = speed.groups * plan.schedule.group_size * tokens
        points.append((speed.devices, 1 / speed.tokens_per_s if speed.tokens_per_s else speed.seconds / trained))
    return TrainingSpeed(points)
