"""
The staleness of a run with ``schedule.staleness = "auto"``: the least that is about as fast as the fastest.

    run directory ─▶ times since the last change ─▶ fitted plan ─▶ step time with each staleness ─▶ StalenessChoice
"""

from contextlib import suppress
from pathlib import Path

from asyncrl.broker.staleness_control import StalenessChoice, transition
from asyncrl.config.live import with_values
from asyncrl.config.run_file import load_config
from asyncrl.errors import ConfigError
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.run_record import read_run
from asyncrl.plan.fit import Fit, fit_run, step_s
from asyncrl.plan.plan_file import changed
from asyncrl.plan.search import AUTO_STALENESS

NEAR = 0.01
"""A lower staleness is chosen if it costs less than this share of the fastest, a higher one if it brings twice as much.
Between the two the current one is kept, so that noise does not change it back and forth."""
NEWEST_FILES = 64
"""Samples files, one a step, whose lengths are read."""


def choose_staleness(path: Path) -> StalenessChoice:
    """
    The staleness for a run from here on. Takes about ten seconds.

    Raises:
        ConfigError: There is no run in ``path``.
        DataError, LedgerError: Its files are damaged.
    """
    directory = RunDirectory(path)
    record = read_run(path)
    config = with_values(load_config(directory.config), record.live_settings)
    now = config.schedule.staleness_bound
    first = sum(time_s <= record.changed_s for _, time_s in record.curve("time_s")) + transition(config.schedule)
    lines = [line for line in directory.read_times() if line.step >= first]
    fitted = fit_run(record, config, lines, directory.samples, newest=NEWEST_FILES)
    if fitted is None:
        return StalenessChoice(now, now, "no step has been measured under the present settings yet")
    return choice_of(fitted)


def choice_of(fitted: Fit) -> StalenessChoice:
    """The least staleness about as fast as the fastest, by a fitted plan; the present one if the plan does not fit."""
    plan = fitted.plan
    now = plan.schedule.staleness_bound
    if not fitted.is_close:
        steps = (
            f"a step of the run takes {fitted.measured_s:.3g} s, and one of a plan fitted to it {fitted.step_s:.3g} s"
        )
        return StalenessChoice(now, now, f"no prediction: {steps}")
    predicted = {now: fitted.step_s}
    for staleness in sorted({*AUTO_STALENESS} - {now}):
        with suppress(ConfigError):  # A run would refuse it, because of max_staleness for instance.
            predicted[staleness] = step_s(changed(plan, {"schedule.staleness": staleness}), fitted.lengths)
    predicted = dict(sorted(predicted.items()))
    fastest = min(predicted.values())
    least = next(staleness for staleness, seconds in predicted.items() if seconds <= (1 + NEAR) * fastest)
    is_worth = least < now or predicted[now] > (1 + 2 * NEAR) * fastest
    chosen = least if is_worth else now
    table = ", ".join(f"{staleness:g}: {seconds:.3g} s" for staleness, seconds in predicted.items())
    return StalenessChoice(
        chosen,
        now,
        f"predicted steps by staleness {table}: {chosen:g} is the least that is about as fast as the fastest",
        {f"{staleness:g}": round(seconds, 6) for staleness, seconds in predicted.items()},
    )
