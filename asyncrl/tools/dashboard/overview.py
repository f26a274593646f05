"""The top of the first page: a sentence about the state, headline numbers, and who waits for whom."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from asyncrl.records import formatting
from asyncrl.records.alarms import alarms
from asyncrl.records.evaluation_metrics import failed_note, graded_reward
from asyncrl.records.formatting import UNKNOWN, counted
from asyncrl.records.measures import RECENT, RECENTLY, Ends, Measures, number, recently
from asyncrl.records.run_record import RunRecord
from asyncrl.records.states import RunState, progress
from asyncrl.records.times import WAITS, kind_of
from asyncrl.tools.dashboard.cluster_view import GONE, NodeView, nodes, role_order
from asyncrl.tools.dashboard.time_bands import TimeBands

NOTABLE, NAMED = 0.1, 0.02
"""Least share of waiting that is told, and of a cause that is named."""
EVALUATED = ("eval.started", "eval.finished", "eval.lost")
NUM_NAMED = 4
"""Lost nodes that are named."""
SILENT_S = 60.0
"""Seconds without a record after which a run is silent; longer if its steps are longer."""


class Tile(Struct, frozen=True, kw_only=True):
    """One headline number."""

    label: str
    value: str
    note: str = ""


def overview(record: RunRecord, waits: Mapping[str, Mapping[str, float]], silent_s: float | None) -> dict[str, Any]:
    """
    The top of the page.

    Args:
        waits: Shares of time by role and activity; empty if times.jsonl has none.
        silent_s: Seconds since the last change of the run's files; None if nothing was recorded.
    """
    pace = record.measures()
    return {
        "name": record.name,
        "status": state_of(record, silent_s),
        "sentence": sentence(record, waits, silent_s, pace),
        "tiles": tiles(record, pace),
        "steps": record.steps,
        "planned": record.planned,
        "restarts": record.restarts(),
        "recently": RECENTLY,
        "evaluations": record.evaluations(),
        "waits": shown_waits(pace, waits),
        "waited": waited(pace, waits),
        "waits_are_whole": bool(waits),
        "num_lost": 0 if record.summary else len(gone(record)),
        "notes": record.notes if record.metrics else [],  # the sentence says more
    }


def state_of(record: RunRecord, silent_s: float | None) -> RunState:
    """State of the run; one of which something was recorded lately runs, perhaps on another machine."""
    return "running" if is_live(record, silent_s) else record.status


def is_live(record: RunRecord, silent_s: float | None) -> bool:
    """True if the run is served here, or no end is recorded and something was recorded lately."""
    is_open = record.status == "stopped" and not record.cause
    return record.is_served or (is_open and not is_silent(record, silent_s))


def is_silent(record: RunRecord, silent_s: float | None) -> bool:
    """True if nothing was recorded lately, given the length of its steps."""
    step_s = record.measures(RECENT).step_s or 0.0
    return silent_s is None or silent_s > max(SILENT_S, 5 * step_s)


def sentence(
    record: RunRecord, waits: Mapping[str, Mapping[str, float]], silent_s: float | None, pace: Measures
) -> str:
    """The state of the run in one or two sentences; ``pace`` is that of all its steps."""
    state = state_of(record, silent_s)
    begun = progress(state, record.steps, record.planned)
    if state == "failed":
        return f"{begun}: {record.cause or 'no cause was recorded'}."
    if state == "interrupted":
        return f"{begun}; `asyncrl resume` continues it."
    if state == "finished":
        took = f" in {formatting.duration(record.wall_s)}" if record.wall_s else ""
        return f"{begun}{took}{_accuracy(record)}.{_alarms(record)}"
    if state == "stopped":
        if record.cause:
            return f"{begun}: {record.cause}."
        since = f" for {formatting.duration(silent_s)}" if silent_s is not None else ""
        return (
            f"{begun}: nothing was recorded{since}, and nothing on this machine serves the run; "
            f"it was stopped or killed, and `asyncrl resume` continues it, or a broker elsewhere takes long."
            f"{_lost(record)}"
        )
    doing = _doing(record, silent_s)
    if not record.metrics:
        return f"{begun}{'' if doing else _waiting(record)}.{doing}"
    now = f"{begun}{_time_left(record)}{_accuracy(record)}."
    return f"{now}{doing}{_lost(record)}{_bottleneck(pace, waits)}{_alarms(record)}"


def timeline_sentence(record: RunRecord, waits: Mapping[str, Mapping[str, float]]) -> str:
    """Tell what the timeline shows, who waited for whom, and whether a node is missing."""
    waited = _bottleneck(record.measures(), waits) or " Nobody waited for long."
    missing = _lost(record) or (" No node is missing." if record.events else "")
    return f"What each node did: the height of a colour is its share of the time.{waited}{missing}"


def samples_sentence(record: RunRecord) -> str:
    """Tell what the samples are, and whether they are good, whole, and something to learn from."""
    told, span = [], recently(len(record.metrics))
    if rewards := record.ends("reward"):
        told.append(f"the mean reward was {_text(rewards.last)} ({_from_first(rewards)})")
    if (cut := _recent(record, "truncated")) is not None:
        told.append(f"{formatting.share(cut)} of the completions of the {span} were cut at their limit")
    if (equal := _recent(record, "zero_advantage_fraction")) is not None:
        told.append(f"{formatting.share(equal)} of them taught nothing, as their group had equal rewards")
    found = f" {'; '.join(told).capitalize()}." if told else ""
    return f"What the policy wrote, and what it was rewarded with.{found}{_alarms(record)}"


def tiles(record: RunRecord, whole: Measures) -> list[Tile]:
    """The headline numbers, always the same ones; ``whole`` is the pace of all steps."""
    rewards, all_steps = record.ends("reward"), f"mean of {_all_steps(record)}"
    gap = record.summary.logprob_gap_mean if record.summary else record.mean("logprob_gap_mean", "logprob_gap_tokens")
    now = record.measures(RECENT)
    base, accuracy, failed = record.accuracies()
    length, cut = _recent(record, "length_mean"), _recent(record, "truncated")
    return [
        Tile(
            label="reward",
            value=_text(rewards.last if rewards else None),
            note=_from_first(rewards) if rewards else "",
        ),
        Tile(
            label="held-out accuracy",
            value=UNKNOWN if accuracy is None else f"{formatting.share(accuracy)}{failed_note(failed)}",
            note=_last_evaluation(record, base, accuracy),
        ),
        _pace_tile("tokens / s", now.tokens_per_s, whole.tokens_per_s, formatting.count, record),
        _pace_tile("a step", now.step_s, whole.step_s, "{:.3g} s".format, record),
        Tile(
            label="waiting",
            value=_waits(now if not record.summary else whole),
            note=f"trainer / rollouts, {_span(record)}",
        ),
        Tile(
            label="length",
            value=UNKNOWN if length is None else f"{length:.0f}",
            note=f"tokens, {recently(len(record.metrics))}{'' if cut is None else f'; {formatting.share(cut)} cut'}",
        ),
        Tile(
            label="staleness",
            value=_text(whole.staleness_mean),
            note=f"versions, {all_steps}; {whole.staleness_max} at most" if whole.staleness_mean is not None else "",
        ),
        Tile(label="log-prob gap", value=_text(gap), note=f"nats, {all_steps}"),
    ]


def waits_of_metrics(pace: Measures) -> dict[str, dict[str, float]]:
    """Shares of waiting by role, as metrics.jsonl has them; the rest is not told apart."""
    shares = _shares_waited(pace)
    return {role: {"working": 1.0 - share, "waiting": share} for role, share in shares.items()}


def shown_waits(pace: Measures, waits: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Shares of time by role and activity, in which each role has waited as long as `waited` says."""
    if not waits:
        return waits_of_metrics(pace)
    shown = {role: dict(waits[role]) for role in sorted(waits, key=role_order)}
    for role, share in _shares_waited(pace).items():
        own = shown.get(role, {})
        found = sum(part for activity, part in own.items() if kind_of(activity) in WAITS)
        if 0 < found < 1:
            scales = {True: share / found, False: (1 - share) / (1 - found)}
            shown[role] = {activity: part * scales[kind_of(activity) in WAITS] for activity, part in own.items()}
    return shown


class Waited(Struct, frozen=True, kw_only=True):
    """Waiting of a role over all steps: a part of 1 of their time, and of it the parts by cause, largest first."""

    share: float
    causes: dict[str, float]


def waited(pace: Measures, waits: Mapping[str, Mapping[str, float]]) -> dict[str, Waited]:
    """
    Waiting of the roles on devices by role, and what for.

    The share is the one that every place shows; times.jsonl, whose seconds come with heartbeats, says how to divide it.
    """
    found = {}
    for role, share in _shares_waited(pace).items():
        causes = {activity: part for activity, part in waits.get(role, {}).items() if kind_of(activity) in WAITS}
        total = sum(causes.values())
        parts = {activity: share * part / total for activity, part in causes.items() if total}
        found[role] = Waited(share=share, causes=parts)
    return found


def _shares_waited(pace: Measures) -> dict[str, float]:
    shares = {"trainer": pace.wait_trainer, "rollout": pace.wait_rollout}
    return {role: share for role, share in shares.items() if share is not None}


def _waits(pace: Measures) -> str:
    shares = pace.wait_trainer, pace.wait_rollout
    told = [UNKNOWN if share is None else f"{share:.0%}" for share in shares]
    return " / ".join(told) if any(share is not None for share in shares) else UNKNOWN


def _span(record: RunRecord) -> str:
    """Span of the tiles of pace: all steps of a run that is over, else the last ones."""
    return _all_steps(record) if record.summary else recently(len(record.metrics))


def _all_steps(record: RunRecord) -> str:
    return f"all {counted(record.steps, 'step')}"


def _from_first(rewards: Ends) -> str:
    begun = f"; {_text(rewards.first)} in the {rewards.told('first')}" if rewards.span else ""
    return f"{rewards.told('last')}{begun}"


def _last_evaluation(record: RunRecord, base: float | None, accuracy: float | None) -> str:
    """Version that the accuracy is of, the accuracy before the first step, and a reward that is not the accuracy."""
    found = record.evaluations()
    if not found or accuracy is None:
        return ""
    parts = [f"v{found[-1].policy_version}"]
    if base is not None and base != accuracy:
        parts.append(f"from {formatting.share(base)}")
    if (reward := graded_reward(accuracy, found[-1].reward)) is not None:
        parts.append(f"reward {_text(reward)}")
    return ", ".join(parts)


def _pace_tile(
    label: str, now: float | None, whole: float | None, form: Callable[[float], str], record: RunRecord
) -> Tile:
    shown = whole if record.summary else now
    in_all = "" if record.summary or whole is None else f"; {form(whole)} in all"
    if shown is None:
        return Tile(label=label, value=UNKNOWN)
    return Tile(label=label, value=form(shown), note=f"{_span(record)}{in_all}")


def _bottleneck(pace: Measures, waits: Mapping[str, Mapping[str, float]]) -> str:
    """A sentence on who waits, over all steps, for what."""
    told = []
    for role, found in waited(pace, waits).items():
        if found.share < NOTABLE:
            continue
        named = [(name, part) for name, part in found.causes.items() if part >= NAMED]
        causes = ", ".join(f"{name.removeprefix('waiting ')} {part:.0%}" for name, part in named)
        name = "the trainer waited" if role == "trainer" else "rollouts waited"
        told.append(f"{name} {found.share:.0%}{f' ({causes})' if causes else ''}")
    return f" Of the time of all steps, {'; '.join(told)}." if told else ""


def _accuracy(record: RunRecord) -> str:
    first, last, failed = record.accuracies()
    if last is None:
        return ""
    told = f"{formatting.share(last)}{failed_note(failed)}"
    if first is None or len(record.evaluations()) < 2:
        return f"; held-out accuracy {told}"
    moved = "rose" if last > first else "fell" if last < first else "stayed"
    return f"; held-out accuracy {moved} from {formatting.share(first)} to {told}"


def _alarms(record: RunRecord) -> str:
    return "".join(f" {alarm.sentence}: see Events." for alarm in alarms(record.events))


def gone(record: RunRecord) -> list[NodeView]:
    """The nodes that are gone and not back."""
    return [node for node in nodes(record.events, TimeBands(), {}) if node.state in GONE]


def _lost(record: RunRecord) -> str:
    """A sentence about the nodes that are gone."""
    lost = gone(record)
    if not lost:
        return ""
    names = ", ".join(node.name for node in lost[:NUM_NAMED]) + ("" if len(lost) <= NUM_NAMED else ", ...")
    what = f"{names} was" if len(lost) == 1 else f"{len(lost)} nodes ({names}) were"
    when = f" at {formatting.duration(lost[-1].since_s)}" if lost[-1].since_s is not None else ""
    return f" {what} lost{when}{f': {lost[-1].cause}' if lost[-1].cause else ''}."


def _waiting(record: RunRecord) -> str:
    waiting = [event for event in record.events if event.get("event") == "run.waiting"]
    if waiting and waiting[-1].get("cause"):
        return f": {waiting[-1]['cause']}"
    roles = {event.get("role") for event in record.events if event.get("event") == "node.joined"}
    if lacking := [role for role in ("trainer", "rollout", "reward") if role not in roles]:
        return f": no {' or '.join(lacking)} has joined yet"
    return ": the nodes load the model" if not _is_live_version(record) else ""


def _doing(record: RunRecord, silent_s: float | None) -> str:
    """A sentence about the evaluation that goes on, or about a silence of a run that is served."""
    evaluations = [event for event in record.events if event.get("event") in EVALUATED]
    if evaluations and (last := evaluations[-1])["event"] == "eval.started":
        return f" v{last.get('policy_version', '?')} is being evaluated on {last.get('num_prompts', '?')} prompts."
    if silent_s is None or not is_silent(record, silent_s):
        return ""
    return f" Its broker runs, and has recorded nothing for {formatting.duration(silent_s)}: something takes long."


def _time_left(record: RunRecord) -> str:
    total, done = record.planned, len(record.metrics)
    if not total or done < 2 or done >= total or (step_s := record.measures(RECENT).step_s) is None:
        return ""
    return f", about {formatting.duration(_rounded(step_s * (total - done)))} left"


def _rounded(seconds: float) -> float:
    """Two digits: an estimate is not known to the second."""
    return float(f"{seconds:.1e}")


def _is_live_version(record: RunRecord) -> bool:
    return any(event.get("event") == "version.live" for event in record.events)


def _recent(record: RunRecord, key: str) -> float | None:
    values = [value for line in record.metrics[-RECENT:] if (value := number(line, key)) is not None]
    return sum(values) / len(values) if values else None


def _text(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if 0 < abs(value) < 1e-3:
        digits, _, power = f"{value:.1e}".partition("e")
        return f"{digits}e−{abs(int(power))}"
    return f"{value:z.3g}"
