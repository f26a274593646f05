"""Differences of several runs: in settings, and in held-out accuracy, for the dashboard and the report."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from asyncrl.records import formatting
from asyncrl.records.measures import RECENT
from asyncrl.records.run_record import RunRecord
from asyncrl.records.states import progress
from asyncrl.tools.dashboard.cluster_view import settings
from asyncrl.tools.dashboard.overview import state_line
from asyncrl.tools.report.charts import interval

NAMES = ("run.name", "run.dir")
"""Settings that say which run it is, and nothing about it."""
HELD_OUT = ("data.held_out", "data.hold_out")
"""Settings of which prompts are evaluated; with the second, `data.train` is, too."""
NUM_NAMED = 3
"""Settings that are named, and have a column."""
FASTER = 1.5
"""Factor between the times of a step from which the fastest and the slowest run are named."""


class RunComparison(Struct, frozen=True, kw_only=True):
    """Several runs side by side; rows have a value for each run, in order."""

    doing: str
    """State of the runs, whether that is well, and what differs between them, in sentences."""
    verdict: str
    """Sentence on which is better; empty if nothing tells."""
    because: str
    """Sentences on what that rests on, and on what else differs."""
    settings: dict[str, list[str]]
    """Settings that differ."""
    columns: list[str]
    """The first of them, for a table of results."""
    best: int | None
    """Place of the one run whose held-out accuracy is better than that of every other; None if there is none."""
    is_alike: bool
    """All runs have the same state and as many steps, which is said."""


def compare(records: Sequence[RunRecord]) -> RunComparison:
    """Compare runs. Only a run whose 95 % interval lies above those of all others is the best."""
    different = differing(records)
    steps = {progress(record.status, record.steps, record.planned).lower() for record in records}
    done = f"{len(records)} runs{f', all {next(iter(steps))}' if len(steps) == 1 else ''}{_well(records)}."
    is_held_out = any(record.config.get("data.hold_out") for record in records)
    decisive = (*HELD_OUT, "data.train") if is_held_out else HELD_OUT
    verdict, because, best = _accuracy(records, is_other_data=not different.keys().isdisjoint(decisive))
    return RunComparison(
        doing=f"{done} {_differ(different)}",
        verdict=verdict,
        because=f"{because}{_pace(records)}".strip(),
        settings=different,
        columns=list(different)[:NUM_NAMED],
        best=best,
        is_alike=len(steps) == 1,
    )


def in_order(records: Sequence[RunRecord]) -> list[int]:
    """Places of the runs by the first setting that differs, if it is a number: an order that results do not change."""
    values = next(iter(differing(records).values()), [])
    try:
        return sorted(range(len(records)), key=lambda place: float(values[place]))
    except (IndexError, ValueError):
        return list(range(len(records)))


def differing(records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Values of each setting that the runs have not in common, seeds last."""
    found = [{row["key"]: row["value"] for row in settings(record)} for record in records]
    keys = dict.fromkeys(key for values in found for key in values if key not in NAMES)
    rows = {key: [values.get(key, formatting.UNKNOWN) for values in found] for key in keys}
    different = [key for key, values in rows.items() if len(set(values)) > 1]
    return {key: rows[key] for key in sorted(different, key=lambda key: key.endswith("seed"))}


def _well(records: Sequence[RunRecord]) -> str:
    ill = [record.name for record in records if state_line(record, {}, is_alone=False).verdict != "well"]
    if len(ill) == len(records):
        return ", none of them well"
    return f", not all well: look at {', '.join(ill)}" if ill else ", all well"


def _differ(different: Mapping[str, Sequence[str]]) -> str:
    if not different:
        return "They have the same settings."
    named = [f"{key}{_range(key, values)}" for key, values in list(different.items())[:NUM_NAMED]]
    if rest := len(different) - len(named):
        named.append(f"{rest} more settings" if rest > 1 else "one more setting")
    return f"They differ in {' and '.join(filter(None, [', '.join(named[:-1]), named[-1]]))}."


def _range(key: str, values: Sequence[str]) -> str:
    """The lowest and the highest of numbers; nothing of texts, and of seeds, whose size says nothing."""
    if key.endswith("seed"):
        return ""
    try:
        ordered = sorted(set(values), key=float)
    except ValueError:
        return ""
    return f" ({ordered[0]} to {ordered[-1]})"


def _accuracy(records: Sequence[RunRecord], *, is_other_data: bool) -> tuple[str, str, int | None]:
    """Verdict by the held-out accuracy of the last evaluations, its reason, and the place of the best run if any."""
    last = {place: found[-1] for place, record in enumerate(records) if (found := record.evaluations())}
    if len(last) < 2:
        return "", "", None
    if is_other_data:
        return "Not comparable.", "Their held-out accuracies are not of the same prompts.", None
    first = max(last, key=lambda place: last[place].accuracy)
    low, _ = interval(last[first].accuracy, last[first].num_prompts)
    equal = [place for place, one in last.items() if interval(one.accuracy, one.num_prompts)[1] >= low]
    if len(equal) == 1:
        told = f"{records[first].name} is best, with a held-out accuracy of {formatting.share(last[first].accuracy)}."
        return told, "Its 95 % interval lies above those of the others.", first
    span = " to ".join(
        dict.fromkeys(formatting.share(choose(last[place].accuracy for place in equal)) for choose in (min, max))
    )
    if len(equal) == len(last):
        told = f"It is {span}, and the 95 % intervals overlap.{_on_the_way(records)}"
        return "No clear difference in held-out accuracy.", told, None
    names = " and ".join(records[place].name for place in equal)
    return f"{names} are best in held-out accuracy.", f"Theirs are {span}, and the 95 % intervals overlap.", None


def _on_the_way(records: Sequence[RunRecord]) -> str:
    """A sentence on the first version at which runs that end alike were clearly apart; empty without one."""
    found = [{one.policy_version: one for one in record.evaluations()} for record in records]
    for version in sorted(set[int].intersection(*map(set, found))):
        at = [evaluations[version] for evaluations in found]
        low, high = (choose(range(len(at)), key=lambda place: at[place].accuracy) for choose in (min, max))
        if interval(at[low].accuracy, at[low].num_prompts)[1] < interval(at[high].accuracy, at[high].num_prompts)[0]:
            ends = " to ".join(
                f"{formatting.share(at[place].accuracy)} ({records[place].name})" for place in (low, high)
            )
            return f" At version {version} they were apart: {ends}."
    return ""


def _pace(records: Sequence[RunRecord]) -> str:
    """A sentence on the time of a step, if it differs much; empty otherwise."""
    paces = {place: step_s for place, record in enumerate(records) if (step_s := record.measures(RECENT).step_s)}
    if not paces or len(paces) < len(records) or max(paces.values()) < FASTER * min(paces.values()):
        return ""
    ends = (choose(paces, key=lambda place: paces[place]) for choose in (min, max))
    told = " to ".join(f"{paces[place]:.3g} s ({records[place].name})" for place in ends)
    return f" A step takes {told}."
