"""
First words of the pages, and of the report, on a run: its state and whether that is well, headline numbers, and a
sentence of each page's own.

    every page   what it does and has achieved
                 All is well | Take note | Not well: who was lost, is missing or waits, and what was alarming
    one page     its nodes, its waits, its last trouble, its settings, its samples
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from asyncrl.broker.nodes.availability import PATIENCE_S
from asyncrl.messages.words import Role
from asyncrl.records import formatting
from asyncrl.records.alarms import NO_LEARNING, alarms
from asyncrl.records.evaluation_metrics import failed_note, graded_reward
from asyncrl.records.events import weighed
from asyncrl.records.formatting import UNKNOWN, counted
from asyncrl.records.learning import Learning
from asyncrl.records.measures import RECENT, RECENTLY, Ends, Measures, number, recently
from asyncrl.records.node_states import AWAY
from asyncrl.records.run_record import RunRecord, paused_by
from asyncrl.records.states import INTERRUPTED, NEEDED, node_of, progress
from asyncrl.records.times import WAITS, kind_of
from asyncrl.tools.dashboard.cluster_view import (
    NodeView,
    gone,
    nodes,
    role_order,
    settings,
    short_cause,
    trouble_sentence,
)
from asyncrl.tools.dashboard.time_bands import TimeBands

NOTABLE = 0.1
"""Least share of waiting that is told."""
LEAST = 0.02
"""Least share of time of a cause that is named."""
IN_SENTENCE, BESIDE_BAR = 2, 3
"""Causes of waiting that are named, the largest."""
EVALUATED = ("eval.started", "eval.finished", "eval.lost")
NUM_NAMED = 4
"""Lost nodes that are named."""
WAITING = {"trainer": "the trainer", "rollout": "rollouts"}
"""Roles whose waiting is told, and how they are named."""


class Tile(Struct, frozen=True, kw_only=True):
    """One headline number."""

    label: str
    value: str
    note: str = ""


def overview(record: RunRecord, waits: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """
    The top of the page.

    Args:
        waits: Shares of time by role and activity; empty if times.jsonl has none.
    """
    pace = record.measures()
    return {
        "name": record.name,
        "status": record.status,
        "state": state_line(record, waits),
        "begins": "" if record.metrics else settings_sentence(record),
        "tiles": tiles(record, pace),
        "steps": record.steps,
        "planned": record.planned,
        "restarts": record.restarts(),
        "recently": RECENTLY,
        "all_steps": _all_steps(record),
        "evaluations": record.evaluations(),
        "waits": shown_waits(pace, waits),
        "waited": {role: _beside_bar(found) for role, found in waited(pace, waits).items()},
        "waits_are_whole": bool(waits),
        "num_lost": 0 if record.is_over else len(gone(record.events)),
        "notes": record.notes if record.metrics else [],  # the sentence says more
    }


# ── sentences ─────────────────────────────────────────────────────────────────────────────────


Verdict = Literal["well", "note", "bad"]
WORDS: Mapping[Verdict, str] = {"well": "All is well.", "note": "Take note.", "bad": "Not well."}


class StateLine(Struct, frozen=True, kw_only=True):
    """The line with which every page of a run, and its report, begin: what it does, and whether that is well."""

    doing: str
    """State, progress and result, in sentences."""
    verdict: Verdict
    because: str
    """Sentences on what is in the way, or that nothing is."""

    @property
    def word(self) -> str:
        return WORDS[self.verdict]

    def __str__(self) -> str:
        return f"{self.doing} {self.word} {self.because}".strip()


def state_line(record: RunRecord, waits: Mapping[str, Mapping[str, float]], *, is_alone: bool = True) -> StateLine:
    """
    The state of a run; ``waits`` as in `overview`.

    Of one of several runs, what a comparison has: how accurate it is and who waits, is left out.
    """
    verdict, because = _judged(record, waits if is_alone else None)
    return StateLine(doing=_doing(record, _result(record) if is_alone else ""), verdict=verdict, because=because)


def _doing(record: RunRecord, result: str) -> str:
    state = record.status
    begun = progress(state, record.steps, record.planned)
    match state:
        case "finished":
            note = record.summary.goal_note if record.summary else ""
            return f"{begun}{note}{f' in {formatting.duration(record.wall_s)}' if record.wall_s else ''}{result}."
        case "stopped":
            ago = "" if record.silent_s is None else f", {formatting.duration(record.silent_s)} ago"
            return f"{begun}{ago}{result}.{' All below is from then.' if ago else ''}"
        case "failed" | "interrupted":
            return f"{begun}{result}."
    return f"{begun}{_time_left(record) if record.metrics else _elapsed(record)}{result}.{_evaluating(record)}"


def _judged(record: RunRecord, waits: Mapping[str, Mapping[str, float]] | None) -> tuple[Verdict, str]:
    """The verdict and its reason; without ``waits``, who waits is left out."""
    match record.status:
        case "failed":
            return "bad", f"It failed: {record.cause or 'no cause was recorded'}."
        case "interrupted":
            why = "" if record.cause in ("", INTERRUPTED) else f": {record.cause}"
            is_paused = bool(paused_by(record.events))
            then = ", paused as it was: `asyncrl unpause` then lets it go on" if is_paused else ""
            return "note", f"It ended early{why}; `asyncrl resume` continues it{then}."
        case "finished":
            return ("note", told) if (told := _alarms(record)) else ("well", "It ended as planned.")
        case "stopped" if record.cause:
            return "bad", f"It stopped: {record.cause}."
        case "stopped":
            unserved = "No broker serves it on this machine: `asyncrl resume` continues it."
            return "bad", f"{missing(record)} {unserved}".strip()
    if told := missing(record):
        return "bad", told
    if told := _silence(record):
        return "note", told
    if not record.metrics:
        return _starting(record)
    slowed = "" if waits is None else _in_the_way(record, waits)
    others = [event for event in record.events if event.get("event") not in NO_LEARNING]
    if told := _alarms(record) or trouble_sentence(others, otherwise=""):
        return "note", f"{told} {slowed}".strip()
    judged = Learning(record.metrics).judgement
    return "well", " ".join(filter(None, (judged.because and f"{judged.because}.", slowed)))


def _starting(record: RunRecord) -> tuple[Verdict, str]:
    """The verdict before the first step: what the run waits for, and until when that is normal."""
    if told := awaited(record):
        told, elapsed_s = f"{told[0].upper()}{told[1:]}", _elapsed_s(record)
        if elapsed_s is not None and elapsed_s > PATIENCE_S:
            return "note", f"{told}, though {PATIENCE_S:.0f} s are over: start one, or look at its log."
        return "well", f"{told}: normal in the first {PATIENCE_S:.0f} s."
    if _is_live_version(record):
        return "well", "The first step comes next."
    ttl_s = number(record.config, "broker.node_ttl_s")
    lost = f" One that is silent for {ttl_s:g} s is named here." if ttl_s else ""
    return "well", f"The nodes load the model: normal, and longer for a larger one.{lost}"


def missing(record: RunRecord) -> str:
    """Sentences about nodes that were lost, and what the broker waits for or which role has left; empty without."""
    if record.is_over:
        return ""
    told = [_lost(record)]
    if cause := _waits_for(record):
        verb = "waits" if record.status in ("running", "paused") else "waited"
        told.append(f"It {verb}: {cause.removesuffix('.')}.")
    elif clause := departed(record):
        told.append(f"{clause[0].upper()}{clause[1:]}.")
    return " ".join(filter(None, told))


def awaited(record: RunRecord) -> str:
    """The roles of which nobody has joined yet, such as ``no trainer has joined yet``; empty without."""
    if record.is_over or record.metrics:  # A step had all of them, whatever became of the events.
        return ""
    never = [NEEDED[role] for role, own in _states(record).items() if not own]
    return f"no {' or '.join(filter(None, (', '.join(never[:-1]), never[-1])))} has joined yet" if never else ""


def departed(record: RunRecord) -> str:
    """The roles that nobody has any more, such as ``every rollout has left``; empty without."""
    left = [NEEDED[role] for role, own in _states(record).items() if "left" in own and {*own} <= {*AWAY}]
    return f"every {' and every '.join(left)} has left" if left and not record.is_over else ""


def _states(record: RunRecord) -> dict[Role, list[str]]:
    found = nodes(record.events, TimeBands(), {})
    return {role: [node.state for node in found if node.role == role] for role in NEEDED}


def cluster_sentence(record: RunRecord, found: Sequence[NodeView]) -> str:
    """Tell how many nodes of each role are in which state, and which role is missing."""
    if found and all(node.state == "left" for node in found):
        return f"All {counted(len(found), 'node')} have left{': the run is over' if record.is_over else ''}."
    told = []
    for role in dict.fromkeys(node.role for node in found):
        states = Counter(node.state for node in found if node.role == role)
        each = next(iter(states)) if len(states) == 1 else ", ".join(f"{n} {state}" for state, n in states.items())
        many = counted(states.total(), node_of(role) or "unknown")
        told.append(f"{many} {each}" if len(states) == 1 else f"{many}: {each}")
    return " · ".join(filter(None, [*told, awaited(record), departed(record)])) or "No node has joined yet."


def events_sentence(record: RunRecord) -> str:
    """Tell whether anything is wrong now, and which was the last trouble that is over."""
    return trouble_sentence(record.events, "The run is over." if record.is_over else "No trouble now.")


def settings_sentence(record: RunRecord) -> str:
    """Tell what is trained on what, and the settings that change learning most."""
    if not record.config:
        return ""
    of = {row["key"]: row["value"] for row in settings(record)}
    return (
        f"Trains {_short_path(of['model.path'])} on {_short_path(of['data.train'])}: trainer.lr {of['trainer.lr']}, "
        f"{of['schedule.groups_per_step']} groups of {of['schedule.group_size']} completions a step, "
        f"schedule.staleness {of['schedule.staleness']}."
    )


def _short_path(path: str) -> str:
    return "/".join(path.split("/")[-2:])


def timeline_sentence(record: RunRecord, waits: Mapping[str, Mapping[str, float]]) -> str:
    """Tell when the steps were made, who waited for whom in them or that they ended, and when the last was recorded."""
    waited = _bottleneck(record, waits) or ("Nobody waited for long." if record.metrics else "")
    if record.metrics and _waits_for(record):
        waited = "Nothing has moved since."
    return " ".join(filter(None, (_span(record), waited, _recorded(record))))


def _span(record: RunRecord) -> str:
    ends_s = [time_s for line in record.metrics if (time_s := number(line, "time_s")) is not None]
    if not ends_s:
        return ""
    begun_s = max(ends_s[0] - (number(record.metrics[0], "step_s") or 0.0), 0.0)
    return f"Steps were made from {formatting.duration(begun_s)} to {formatting.duration(ends_s[-1])}."


def _recorded(record: RunRecord) -> str:
    times_s = [time_s for line in (*record.metrics, *record.events) if (time_s := number(line, "time_s")) is not None]
    if record.is_over or record.silent_s is None or not times_s:
        return ""
    last, ago = formatting.duration(max(times_s)), formatting.duration(record.silent_s)
    return f"The last record is of {last}, written {ago} ago."


def samples_sentence(record: RunRecord) -> str:
    """Tell what the samples are, and whether they are good, whole, and something to learn from."""
    told, span = [], recently(len(record.metrics))
    if rewards := record.ends("reward"):
        told.append(f"the mean reward was {_text(rewards.last)} ({_from_first(rewards)})")
    if (cut := _recent(record, "truncated")) is not None:
        told.append(f"{formatting.share(cut)} of the completions of the {span} were cut at their limit")
    if (equal := _recent(record, "zero_advantage_fraction")) is not None:
        told.append(
            f"{formatting.share(equal)} of the completions taught nothing, as all rewards of their group were equal, "
            "which is usual where prompts are too easy or too hard"
        )
    found = f" {'; '.join(told).capitalize()}." if told else ""
    return f"What the policy wrote, and what it was rewarded with.{found}"


def tiles(record: RunRecord, whole: Measures) -> list[Tile]:
    """The headline numbers, always the same ones, with spans that an end does not change; ``whole``: of all steps."""
    rewards, all_steps = record.ends("reward"), f"mean of {_all_steps(record)}"
    gap = record.summary.logprob_gap_mean if record.summary else record.mean("logprob_gap_mean")
    now = record.measures(RECENT)
    base, accuracy, failed = record.accuracies()
    length, cut = _recent(record, "length_mean"), _recent(record, "truncated")
    span = recently(len(record.metrics))
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
        _pace_tile("tokens / s", now.tokens_per_s, whole.tokens_per_s, formatting.count, span),
        _pace_tile("a step", now.step_s, whole.step_s, "{:.3g} s".format, span),
        Tile(label="waiting", value=_waits(now), note=f"trainer / rollouts, {span}; {_waits(whole)} in all"),
        Tile(
            label="length",
            value=UNKNOWN if length is None else f"{length:.0f}",
            note=f"tokens, {span}{'' if cut is None else f'; {formatting.share(cut)} cut'}",
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
    Waiting by role, and what for.

    The share of the trainer and of rollouts is the one that every place shows; times.jsonl, whose seconds come with
    heartbeats, says how to divide it, and the share of any other role.
    """
    found, shares = {}, _shares_waited(pace)
    for role in sorted({*shares, *waits}, key=role_order):
        causes = {activity: part for activity, part in waits.get(role, {}).items() if kind_of(activity) in WAITS}
        total = sum(causes.values())
        share = shares.get(role, total)
        ordered = sorted(causes.items(), key=lambda cause: -cause[1])
        found[role] = Waited(share=share, causes={activity: share * part / total for activity, part in ordered if part})
    return found


def _beside_bar(found: Waited) -> str:
    """Waiting of a role in words: whole percents, of which those of all causes make that of the whole."""
    named = [f"{name.removeprefix('waiting for ')} {part} %" for name, part in _percents(found).items() if part]
    rest = ", among others" if len(named) > BESIDE_BAR else ""
    causes = f": {', '.join(named[:BESIDE_BAR])}{rest}" if named else ""
    return f"waits {formatting.share(found.share, 0)}{causes}"


def _percents(found: Waited) -> dict[str, int]:
    """Percents of the causes, rounded so that they add up: those with the largest remainders are rounded up."""
    floors = {name: int(100 * part) for name, part in found.causes.items()}
    remainders = sorted(floors, key=lambda name: floors[name] - 100 * found.causes[name])
    for name in remainders[: round(100 * found.share) - sum(floors.values())]:
        floors[name] += 1
    return floors


def _shares_waited(pace: Measures) -> dict[str, float]:
    shares = {"trainer": pace.wait_trainer, "rollout": pace.wait_rollout}
    return {role: share for role, share in shares.items() if share is not None}


def _waits(pace: Measures) -> str:
    shares = pace.wait_trainer, pace.wait_rollout
    told = [UNKNOWN if share is None else f"{100 * share:.0f}" for share in shares]
    return f"{' / '.join(told)} %" if any(share is not None for share in shares) else UNKNOWN


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


def _pace_tile(label: str, now: float | None, whole: float | None, form: Callable[[float], str], span: str) -> Tile:
    if now is None:
        return Tile(label=label, value=UNKNOWN)
    in_all = "" if whole is None else f"; {form(whole)} in all"
    return Tile(label=label, value=form(now), note=f"{span}{in_all}")


def _bottleneck(record: RunRecord, waits: Mapping[str, Mapping[str, float]]) -> str:
    """A sentence on how long trainer and rollouts waited, over all steps, and what for above all."""
    told = [
        f"{WAITING[role]} waited {formatting.share(share, 0)}{causes}"
        for role, share, causes in _waiting(record, waits)
    ]
    return f"Of the time of {_all_steps(record)}, {'; '.join(told)}." if told else ""


def _in_the_way(record: RunRecord, waits: Mapping[str, Mapping[str, float]]) -> str:
    """A sentence on who waited longest, trainer or rollouts, and what for above all."""
    if not (told := _waiting(record, waits)):
        return "Nothing is in the way: nobody waits for long."
    role, share, causes = max(told, key=lambda one: one[1])
    of_time = f"{formatting.share(share, 0)} of the time of {_all_steps(record)}"
    return f"Most in the way: {WAITING[role]} waited {of_time}{causes}."


def _waiting(record: RunRecord, waits: Mapping[str, Mapping[str, float]]) -> list[tuple[str, float, str]]:
    """The roles that waited long, trainer or rollouts, each with its share of waiting and a clause on the causes."""
    told, found = [], waited(pace := record.measures(), waits)
    for role in _shares_waited(pace):
        if found[role].share < NOTABLE:
            continue
        named = [name.removeprefix("waiting ") for name, part in found[role].causes.items() if part >= LEAST]
        first, rest = named[:1], [name.removeprefix("for ") for name in named[1:IN_SENTENCE]]
        causes = f", mostly {' and '.join([*first, *rest])}" if named else ""
        told.append((role, found[role].share, causes))
    return told


def _result(record: RunRecord) -> str:
    """A clause on the held-out accuracy, or on the reward of a run without; empty before both."""
    first, last, failed = record.accuracies()
    if last is None:
        rewards = record.ends("reward")
        if rewards is None or not rewards.span:
            return ""
        return f"; mean reward {_moved(rewards.first, rewards.last, _text)} ({rewards.told('last')})"
    if first is None or len(record.evaluations()) < 2:
        return f"; held-out accuracy {formatting.share(last)}{failed_note(failed)}"
    return f"; held-out accuracy {_moved(first, last, formatting.share)}{failed_note(failed)}"


def _moved(first: float, last: float, form: Callable[[float], str]) -> str:
    verb = "rose" if last > first else "fell"
    return f"stayed at {form(last)}" if first == last else f"{verb} from {form(first)} to {form(last)}"


def _alarms(record: RunRecord) -> str:
    found = alarms(record.events, record.metrics)
    return " ".join(f"{alarm.sentence}{': see Events' if alarm.advice else ''}." for alarm in found)


def _lost(record: RunRecord) -> str:
    """A sentence about the nodes that are gone."""
    lost = gone(record.events)
    if not lost:
        return ""
    names = ", ".join(node.name for node in lost[:NUM_NAMED]) + ("" if len(lost) <= NUM_NAMED else ", ...")
    what = f"{names} was" if len(lost) == 1 else f"{len(lost)} nodes ({names}) were"
    when = f" at {formatting.duration(lost[-1].since_s)}" if lost[-1].since_s is not None else ""
    return f"{what} lost{when}{f': {short_cause(lost[-1].cause)}' if lost[-1].cause else ''}."


def _waits_for(record: RunRecord) -> str:
    """Cause for which the broker waits, as it said last; empty if it waits no more."""
    waiting = [one for one in weighed(record.events) if one.event.get("event") == "run.waiting"]
    return str(waiting[-1].event.get("cause") or "") if waiting and waiting[-1].weight == "trouble" else ""


def _elapsed(record: RunRecord) -> str:
    elapsed_s = _elapsed_s(record)
    return "" if elapsed_s is None else f", {formatting.duration(elapsed_s)} after its start"


def _elapsed_s(record: RunRecord) -> float | None:
    """Seconds since the start: those of the last event, and of the silence since."""
    times_s = [time_s for event in record.events if (time_s := number(event, "time_s")) is not None]
    return max(times_s) + record.silent_s if times_s and record.silent_s is not None else None


def _evaluating(record: RunRecord) -> str:
    """A sentence about the evaluation that goes on; empty without."""
    last: Mapping[str, Any] = next((event for event in reversed(record.events) if event.get("event") in EVALUATED), {})
    if last.get("event") != "eval.started":
        return ""
    return f" v{last.get('policy_version', '?')} is being evaluated on {last.get('num_prompts', '?')} prompts."


def _silence(record: RunRecord) -> str:
    """A sentence about a silence of a run that is served, evaluates nothing and is not paused; empty without."""
    if record.silent_s is None or not record.is_silent or _evaluating(record) or record.status == "paused":
        return ""
    return (
        f"Its broker runs, and has recorded nothing for {formatting.duration(record.silent_s)}: something takes long."
    )


def _time_left(record: RunRecord) -> str:
    total, done = record.planned, record.step_history.num_steps
    if record.status == "paused":
        return ": an operator paused it, and `asyncrl unpause` lets it go on"
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
