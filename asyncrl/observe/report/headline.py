"""The numbers one asks of a run first, and side by side when there are several."""

from collections import Counter
from collections.abc import Mapping, Sequence

from asyncrl.observe import figures
from asyncrl.observe.figures import UNKNOWN
from asyncrl.observe.report.held_out import of_many, sources
from asyncrl.observe.run_record import RunRecord

ENDING = 10
"""Steps whose mean stands for a noisy curve's start or end."""


def headline(record: RunRecord) -> dict[str, str]:
    """What a run achieved and what it cost, as label and text. Every run has the same labels in the same order."""
    summary, held_out = record.summary, record.held_out()
    start, end = _ends([value for _, value in record.curve("reward")])
    staleness = summary.staleness_mean if summary else record.mean("staleness_mean", "tokens")
    stalest = summary.staleness_max if summary else _highest(record, "staleness_max")
    tokens = summary.trained_tokens if summary else record.total("tokens")
    base = summary.base_accuracy if summary else next((e.accuracy for e in held_out if e.policy_version == 0), None)
    trained = [e.accuracy for e in held_out if e.policy_version > 0]
    last = summary.held_out_accuracy if summary else (trained[-1] if trained else None)
    gap = summary.logprob_gap_mean if summary else record.mean("logprob_gap_mean", "logprob_gap_tokens")
    highest_gap = summary.logprob_gap_max if summary else _highest(record, "logprob_gap_max")
    kinds = Counter(str(event.get("event")) for event in record.events)
    return {
        "steps": _steps(record),
        "wall time": UNKNOWN if record.wall_s is None else figures.duration(record.wall_s),
        "held-out accuracy before": _share(base),
        "held-out accuracy after": _share(last),
        "held-out, of several completions": _shares(of_many(held_out[-1].metrics) if held_out else {}),
        "held-out, by data source": _shares(sources(held_out[-1].metrics) if held_out else {}),
        "held-out prompts": str(held_out[-1].num_prompts) if held_out else UNKNOWN,
        f"reward, first {ENDING} steps": _plain(start),
        f"reward, last {ENDING} steps": _plain(end),
        "trained tokens": _count(tokens),
        "trained tokens / s": _count(tokens / record.wall_s if tokens is not None and record.wall_s else None),
        "staleness, mean": _plain(staleness),
        "staleness, max": _plain(stalest),
        "trainer waiting": _share(record.mean("wait_trainer", "step_s")),
        "rollouts waiting": _share(record.mean("wait_rollout", "step_s")),
        "pause per publish": _milliseconds(record.mean("pause_s")),
        "log-prob gap, mean": _plain(gap),
        "log-prob gap, max": _plain(highest_gap),
        "nodes lost": str(kinds["node.lost"]),
        "processes that died": str(kinds["node.exited"]),
        "groups dropped": str(kinds["group.dropped"]),
    }


def _highest(record: RunRecord, key: str) -> float | None:
    return max((value for _, value in record.curve(key)), default=None)


def _ends(values: Sequence[float]) -> tuple[float | None, float | None]:
    if not values:
        return None, None
    first, last = values[:ENDING], values[-ENDING:]
    return sum(first) / len(first), sum(last) / len(last)


def _steps(record: RunRecord) -> str:
    done = record.summary.steps if record.summary else len(record.metrics)
    planned = record.summary.steps_planned if record.summary else record.config.get("run.steps")
    return f"{done} of {planned}" if planned else str(done)


def _plain(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g}"


def _shares(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {figures.share(value)}" for name, value in values.items()) or UNKNOWN


def _count(value: float | None) -> str:
    return UNKNOWN if value is None else figures.count(value)


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else figures.share(value)


def _milliseconds(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else f"{1000 * seconds:.3g} ms"
