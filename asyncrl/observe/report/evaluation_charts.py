"""
Charts of evaluations with several completions per prompt, or with several data sources.

    eval.finished  accuracy 0.41  avg@8 0.41  pass@1 0.41  pass@2 0.55  ...  pass@8 0.78  maj@8 0.52  math/avg@8 0.30
                                  └── one curve over m, first and last version ──┘       └─ over versions, by source
"""

from collections.abc import Callable, Mapping, Sequence

from asyncrl.observe.report.axes import Point
from asyncrl.observe.report.charts import Series, line_chart
from asyncrl.observe.report.curves import run_label
from asyncrl.observe.run_record import RunRecord


def evaluation_charts(records: Sequence[RunRecord]) -> list[str]:
    """The charts that have data; none where accuracy is the only metric."""
    return [chart for draw in (_pass_curves, _over_versions, _by_source) if (chart := draw(records))]


def pass_curve(metrics: Mapping[str, float]) -> list[Point]:
    """``(m, pass@m)`` for every m in ``metrics``, ascending."""
    return sorted(
        (int(name.removeprefix("pass@")), value) for name, value in metrics.items() if name.startswith("pass@")
    )


def multi_sample_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """``avg@k``, ``maj@k`` and the ``pass@k`` of the largest k; empty with one completion per prompt."""
    found = {name: value for name, value in metrics.items() if name.startswith(("avg@", "maj@"))}
    return found | {f"pass@{m}": value for m, value in pass_curve(metrics)[-1:]}


def accuracy_by_source(metrics: Mapping[str, float]) -> dict[str, float]:
    """Accuracy of each data source; empty if there was only one."""
    by_source = {}
    for full_name, value in metrics.items():
        source, _, name = full_name.rpartition("/")
        if source and (name == "accuracy" or name.startswith("avg@")):  # One completion per prompt, or several.
            by_source[source] = value
    return by_source


def _pass_curves(records: Sequence[RunRecord]) -> str | None:
    """Training that only sharpens the policy raises small m; training that solves new prompts raises large m too."""
    series = []
    for run, record in enumerate(records):
        found = [evaluation for evaluation in record.evaluations() if len(pass_curve(evaluation.metrics)) > 1]
        for place, evaluation in enumerate([*found[:1], *found[1:][-1:]]):
            label = run_label(records, record, f"version {evaluation.policy_version}")
            points = pass_curve(evaluation.metrics)
            series.append(Series(points=points, label=label, colour=run, dashed=place == 0, dots=True))
    title = "Held-out pass@m, right at least once in m completions"
    return line_chart(title, series, x_label="completions (m)", zero=True, percent=True) if series else None


def _over_versions(records: Sequence[RunRecord]) -> str | None:
    return _chart("Held-out, by how completions are counted", records, multi_sample_metrics)


def _by_source(records: Sequence[RunRecord]) -> str | None:
    return _chart("Held-out accuracy by data source", records, accuracy_by_source)


def _chart(
    title: str, records: Sequence[RunRecord], values_of: Callable[[Mapping[str, float]], dict[str, float]]
) -> str | None:
    series = []
    for run, record in enumerate(records):
        lines: dict[str, list[Point]] = {}
        for evaluation in record.evaluations():
            for name, value in values_of(evaluation.metrics).items():
                lines.setdefault(name, []).append((evaluation.policy_version, value))
        for place, (name, points) in enumerate(lines.items()):
            colour = run if len(records) > 1 else place
            label = run_label(records, record, name)
            series.append(Series(points=points, label=label, colour=colour, dashed=place > 0, dots=True))
    return line_chart(title, series, x_label="policy version", zero=True, percent=True) if series else None
