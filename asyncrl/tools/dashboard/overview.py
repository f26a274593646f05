"""The top of the first page: a sentence about the state, headline numbers, and who waits for whom."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from asyncrl.records import formatting
from asyncrl.records.alarms import alarms
from asyncrl.records.evaluation_metrics import failed_note
from asyncrl.records.formatting import UNKNOWN
from asyncrl.records.run_record import NO_SUMMARY, EvaluationEvent, RunRecord

RECENT = 5
"""Steps over which a number of now is taken."""
COSTLY = ("trainer", "rollout")
"""Roles on devices, whose waiting is worth a sentence."""
SILENT_S = 60.0
"""Seconds without a record after which a run without an end may be over; longer if its steps are longer."""


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
    return {
        "name": record.name,
        "status": "running" if is_live(record, silent_s) else record.status,
        "sentence": sentence(record, waits, silent_s),
        "tiles": tiles(record),
        "steps": steps(record),
        "planned": planned(record),
        "evaluations": record.evaluations(),
        "waits": waits or waits_of_metrics(record),
        "waits_are_whole": bool(waits),
        "notes": [note for note in record.notes if note != NO_SUMMARY],  # the sentence says more
    }


def is_live(record: RunRecord, silent_s: float | None) -> bool:
    """True if no end is recorded and something was recorded lately."""
    step_s = record.mean("step_s") or 0.0
    return record.status in ("running", "stopped") and silent_s is not None and silent_s <= max(SILENT_S, 5 * step_s)


def steps(record: RunRecord) -> int:
    return record.summary.steps if record.summary else len(record.metrics)


def planned(record: RunRecord) -> int | None:
    found = record.summary.steps_planned if record.summary else record.config.get("run.steps")
    return found if isinstance(found, int) else None


def sentence(record: RunRecord, waits: Mapping[str, Mapping[str, float]], silent_s: float | None) -> str:
    """The state of the run in one or two sentences."""
    of = f" of {total}" if (total := planned(record)) else ""
    if record.status == "failed":
        return f"Failed after step {steps(record)}{of}: {record.cause or 'no cause was recorded'}."
    if record.status == "interrupted":
        return f"Interrupted after step {steps(record)}{of}; `asyncrl resume` continues it."
    if record.status == "finished":
        took = f" in {formatting.duration(record.wall_s)}" if record.wall_s else ""
        return f"Finished {steps(record)} steps{took}{_accuracy(record)}.{_alarms(record)}"
    if not is_live(record, silent_s):
        since = f" for {formatting.duration(silent_s)}" if silent_s is not None else ""
        return f"Nothing was recorded{since} and no end either: the run was killed, or a step takes long."
    if not record.metrics:
        return f"Before the first step{_waiting(record)}."
    now = f"Training, step {steps(record)}{of}{_time_left(record)}{_accuracy(record)}."
    return f"{now}{_bottleneck(record, waits)}{_alarms(record)}"


def tiles(record: RunRecord) -> list[Tile]:
    """The headline numbers, always the same ones."""
    reward, before = _recent(record, "reward"), _first(record, "reward")
    evaluations = record.evaluations()
    stalest = max((value for _, value in record.curve("staleness_max")), default=None)
    gap = record.summary.logprob_gap_mean if record.summary else record.mean("logprob_gap_mean", "logprob_gap_tokens")
    tokens = _recent(record, "tokens_per_s")
    length, cut = _recent(record, "length_mean"), _recent(record, "truncated")
    return [
        Tile(
            label="reward",
            value=_text(reward),
            note=f"from {_text(before)}" if before is not None else "",
        ),
        Tile(
            label="held-out accuracy",
            value=_accuracy_of(evaluations[-1]) if evaluations else UNKNOWN,
            note=f"from {formatting.share(evaluations[0].accuracy)}" if len(evaluations) > 1 else "",
        ),
        Tile(
            label="tokens / s",
            value=UNKNOWN if tokens is None else formatting.count(tokens),
            note="trained, last steps",
        ),
        Tile(
            label="length",
            value=UNKNOWN if length is None else f"{length:.0f}",
            note=f"{formatting.share(cut)} cut" if cut is not None else "",
        ),
        Tile(label="staleness, max", value=_text(stalest), note="policy versions"),
        Tile(label="log-prob gap", value=_text(gap), note="nats, mean"),
    ]


def waits_of_metrics(record: RunRecord) -> dict[str, dict[str, float]]:
    """Shares of waiting by role, as metrics.jsonl has them; the rest is not told apart."""
    found = {}
    for role, key in (("trainer", "wait_trainer"), ("rollout", "wait_rollout")):
        if (share := record.mean(key, "step_s")) is not None:
            found[role] = {"working": 1.0 - min(share, 1.0), "waiting": min(share, 1.0)}
    return found


def _bottleneck(record: RunRecord, waits: Mapping[str, Mapping[str, float]]) -> str:
    if waits:
        longest = [
            (share, role, activity)
            for role in COSTLY
            for activity, share in waits.get(role, {}).items()
            if activity.startswith("waiting")
        ]
        if longest and max(longest)[0] >= 0.1:
            share, role, activity = max(longest)
            return f" The {role} spends {share:.0%} of its time {activity}."
        return ""
    trainer = record.mean("wait_trainer", "step_s") or 0.0
    rollouts = record.mean("wait_rollout", "step_s") or 0.0
    if max(trainer, rollouts) < 0.1:
        return ""
    if trainer >= rollouts:
        return f" The trainer waits for trajectories {trainer:.0%} of the time."
    return f" The rollouts wait {rollouts:.0%} of the time."


def _accuracy(record: RunRecord) -> str:
    found = record.evaluations()
    if not found:
        return ""
    if len(found) == 1:
        return f"; held-out accuracy {_accuracy_of(found[0])}"
    first, last = found[0].accuracy, found[-1].accuracy
    moved = "rose" if last > first else "fell" if last < first else "stayed"
    return f"; held-out accuracy {moved} from {formatting.share(first)} to {_accuracy_of(found[-1])}"


def _accuracy_of(evaluation: EvaluationEvent) -> str:
    return f"{formatting.share(evaluation.accuracy)}{failed_note(evaluation.metrics.get('failed', 0))}"


def _alarms(record: RunRecord) -> str:
    return "".join(f" {alarm.sentence}: see Events." for alarm in alarms(record.events))


def _waiting(record: RunRecord) -> str:
    waiting = [event for event in record.events if event.get("event") == "run.waiting"]
    if waiting and waiting[-1].get("cause"):
        return f": {waiting[-1]['cause']}"
    names = {event.get("node") for event in record.events if event.get("event") == "node.joined"}
    return f": {len(names)} nodes have joined" if names else ""


def _time_left(record: RunRecord) -> str:
    total, times = planned(record), record.curve("time_s")
    if not total or len(times) < 2 or len(times) >= total:
        return ""
    recent = times[-50:]
    step_s = (recent[-1][1] - recent[0][1]) / max(len(recent) - 1, 1)
    return f", about {formatting.duration(step_s * (total - len(times)))} left"


def _recent(record: RunRecord, key: str) -> float | None:
    values = [value for _, value in record.curve(key)[-RECENT:]]
    return sum(values) / len(values) if values else None


def _first(record: RunRecord, key: str) -> float | None:
    values = [value for _, value in record.curve(key)[:RECENT]]
    return sum(values) / len(values) if len(values) == RECENT else None


def _text(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if 0 < abs(value) < 1e-3:
        digits, _, power = f"{value:.1e}".partition("e")
        return f"{digits}e−{abs(int(power))}"
    return f"{value:.3g}"
