"""`asyncrl why`: where the time of a run went, and what it warned about, as text."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.config.live import with_values
from asyncrl.config.run_file import load_config
from asyncrl.messages.words import Role
from asyncrl.records.alarms import Alarm
from asyncrl.records.formatting import count, counted, duration, share
from asyncrl.records.measures import Measures
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import read_run
from asyncrl.terminal import aligned
from asyncrl.tools.plan.fit import CLOSE, ONE_MORE, Forecast, forecast
from asyncrl.tools.why import Explanation, explain

LEAST = 0.01
"""Shares below are summed up."""
FEW = 8
"""Nodes of a role that are listed one by one."""
WIDTH = 20
"""Characters of a bar of all of the time."""
PLURAL: dict[Role, str] = {"trainer": "trainer", "rollout": "rollouts", "reward": "reward nodes"}


class Why(Struct, frozen=True):
    explanation: Explanation
    forecast: Forecast | None
    """None if it was not asked for, or no plan describes such a run."""


def why_of(path: Path, *, is_predicted: bool) -> Why:
    """
    Raises:
        ConfigError: There is no run in ``path``.
        LedgerError: It recorded no times, or they are damaged.
    """
    directory = RunDirectory(path)
    record = read_run(path)
    record = replace(record, times=directory.read_times())
    explanation = explain(record)
    if not is_predicted or not directory.config.is_file():
        return Why(explanation, None)
    config = with_values(load_config(directory.config), record.live_settings)
    return possible(Why(explanation, forecast(record, config, directory.samples)))


def possible(found: Why) -> Why:
    """Findings without the gain of one more process, if no core is left for it: the plan knows of no cores."""
    diagnosis, predicted = found.explanation.diagnosis, found.forecast
    if predicted is None or diagnosis is None or diagnosis.bottleneck != "processor":
        return found
    return replace(found, forecast=replace(predicted, gains=[g for g in predicted.gains if g.change != ONE_MORE]))


def why_text(name: str, found: Why) -> str:
    alarms = found.explanation.alarms
    first, later = ([alarm for alarm in alarms if alarm.is_first is is_first] for is_first in (True, False))
    head = [*list(_alarms(first))[1:], ""] if first else []
    return "\n".join([*head, *_lines(name, found.explanation), *_forecast(found.forecast), *_alarms(later)])


def _lines(name: str, found: Explanation) -> Iterator[str]:
    if found.status in ("failed", "interrupted"):
        cause = f": {found.cause}" if found.status == "failed" else ""
        yield f"{name} {found.status} after {counted(found.steps, 'step')}{cause}"
    if found.measures:
        yield f"{name}: {_pace(found.measures)}"
    yield (
        f"What each did in {found.steady_s:.1f} s, without loading and the first step after it, pauses and the end of "
        f"the run:"
    )
    for role, shares in found.roles.items():
        yield ""
        yield PLURAL[role]
        yield from _table(shares)
    yield from _nodes(found)
    yield ""
    if not found.steps:
        yield "No step was trained, so there is no bottleneck to name."
        return
    if found.diagnosis is None:
        yield "No trainer has told what it does: nothing to conclude."
        return
    yield f"Bottleneck: {found.diagnosis.bottleneck}. {found.diagnosis.sentence}"
    if found.diagnosis.setting:
        yield f"To change it: {found.diagnosis.setting}."


def _pace(found: Measures) -> str:
    parts = [f"{counted(found.steps, 'step')} in {duration(found.seconds)}"]
    if found.step_s is not None and found.tokens_per_s is not None:
        parts.append(f"{found.step_s:.3g} s a step, {count(found.tokens_per_s)} trained tokens / s")
    waits = (("trainer waits", found.wait_trainer), ("rollouts wait", found.wait_rollout))
    parts += [f"{who} {share(value)}" for who, value in waits if value is not None]
    return ", ".join(parts)


def _forecast(found: Forecast | None) -> Iterator[str]:
    if found is None:
        return
    yield ""
    if not found.is_close:
        yield (
            f"No prediction of changes: a step takes {found.measured_s:.3g} s without starts, and one of a plan fitted "
            f"to it {found.fitted_s:.3g} s, more than {CLOSE:.0%} away: a plan knows nothing of slow disks or busy "
            f"cores."
        )
        return
    steps = f"steps of {found.fitted_s:.3g} s, measured {found.measured_s:.3g} s without starts"
    yield f"What a change would bring, by a plan fitted to this run ({steps}):"
    yield from (f"  {gain.speedup:.2f}x  {gain.change}" for gain in found.gains)


def _alarms(found: Sequence[Alarm]) -> Iterator[str]:
    for alarm in found:
        yield ""
        yield str(alarm)


def _table(shares: Mapping[str, float]) -> Iterator[str]:
    large = {activity: share for activity, share in shares.items() if share >= LEAST}
    if (rest := 1 - sum(large.values())) >= LEAST / 2:
        large["other"] = rest
    rows = [[f"{share:.0%}", "█" * max(round(share * WIDTH), 1), activity] for activity, share in large.items()]
    yield from (f"  {line}" for line in aligned(rows, right=(0,)))


def _nodes(found: Explanation) -> Iterator[str]:
    if not 1 < len(found.nodes) <= FEW:
        return
    yield ""
    yield "nodes"
    rows = [
        [name, ", ".join(f"{activity} {share:.0%}" for activity, share in list(shares.items())[:3])]
        for name, shares in sorted(found.nodes.items())
    ]
    yield from (f"  {line}" for line in aligned(rows))
