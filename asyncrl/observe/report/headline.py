"""The most important numbers of a run."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from asyncrl.evaluation.metrics import failed_note
from asyncrl.observe import formatting
from asyncrl.observe.formatting import UNKNOWN
from asyncrl.observe.report.evaluation_charts import accuracy_by_source, multi_sample_metrics
from asyncrl.observe.run_record import RunRecord

ENDING = 10
"""Number of steps averaged for the start and the end of a noisy curve."""


def headline(record: RunRecord) -> dict[str, str]:
    """Results and cost of a run, label to text. Every run has the same labels in the same order."""
    summary, evaluations = record.summary, record.evaluations()
    start, end = _ends([value for _, value in record.curve("reward")])
    staleness = summary.staleness_mean if summary else record.mean("staleness_mean", "tokens")
    stalest = summary.staleness_max if summary else _highest(record, "staleness_max")
    tokens = summary.trained_tokens if summary else record.total("tokens")
    base = summary.base_accuracy if summary else next((e.accuracy for e in evaluations if e.policy_version == 0), None)
    trained = [e.accuracy for e in evaluations if e.policy_version > 0]
    last_metrics = evaluations[-1].metrics if evaluations else {}
    last = summary.held_out_accuracy if summary else (trained[-1] if trained else None)
    failed = failed_note(last_metrics.get("failed", 0))
    gap = summary.logprob_gap_mean if summary else record.mean("logprob_gap_mean", "logprob_gap_tokens")
    highest_gap = summary.logprob_gap_max if summary else _highest(record, "logprob_gap_max")
    kinds = Counter(str(event.get("event")) for event in record.events)
    return {
        "steps": _steps(record),
        "wall time": _text(record.wall_s, formatting.duration),
        "held-out accuracy before": _text(base, formatting.share),
        "held-out accuracy after": _text(last, formatting.share),
        "held-out, of several completions": _shares(multi_sample_metrics(last_metrics)),
        "held-out, by data source": _shares(accuracy_by_source(last_metrics)),
        "held-out prompts": f"{evaluations[-1].num_prompts}{failed}" if evaluations else UNKNOWN,
        f"reward, first {ENDING} steps": _text(start),
        f"reward, last {ENDING} steps": _text(end),
        "trained tokens": _text(tokens, formatting.count),
        "trained tokens / s": _text(
            tokens / record.wall_s if tokens is not None and record.wall_s else None, formatting.count
        ),
        "staleness, mean": _text(staleness),
        "staleness, max": _text(stalest),
        "trainer waiting": _text(record.mean("wait_trainer", "step_s"), formatting.share),
        "rollouts waiting": _text(record.mean("wait_rollout", "step_s"), formatting.share),
        "pause per publish": _text(record.mean("pause_s"), lambda seconds: f"{1000 * seconds:.3g} ms"),
        "log-prob gap, mean": _text(gap),
        "log-prob gap, max": _text(highest_gap),
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


def _text(value: float | None, form: Callable[[float], str] = "{:.3g}".format) -> str:
    return UNKNOWN if value is None else form(value)


def _shares(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {formatting.share(value)}" for name, value in values.items()) or UNKNOWN
