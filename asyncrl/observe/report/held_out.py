"""
What evaluations with several completions a prompt, or of several data sources, show beyond accuracy.

    eval.finished  accuracy 0.41  avg@8 0.41  pass@1 0.41  pass@2 0.55  ...  pass@8 0.78  maj@8 0.52  math/avg@8 0.30
                                  └── one curve over m, first and last version ──┘       └ over versions, by source ┘
"""

from collections.abc import Callable, Mapping, Sequence

from asyncrl.observe.report.axes import Point
from asyncrl.observe.report.charts import Series, line_chart
from asyncrl.observe.run_record import RunRecord


def held_out_charts(records: Sequence[RunRecord]) -> list[str]:
    """Charts of what there is; none where accuracy is all that was measured."""
    return [chart for draw in (_pass_curves, _over_versions, _by_source) if (chart := draw(records))]


def pass_curve(metrics: Mapping[str, float]) -> list[Point]:
    """``(m, pass@m)`` as far as it is known, m ascending."""
    return sorted(
        (int(name.removeprefix("pass@")), value) for name, value in metrics.items() if name.startswith("pass@")
    )


def of_many(metrics: Mapping[str, float]) -> dict[str, float]:
    """``avg@k``, ``maj@k``, ``pass@k`` with all its completions; empty if there was one of each prompt."""
    found = {name: value for name, value in metrics.items() if name.startswith(("avg@", "maj@"))}
    return found | {f"pass@{m}": value for m, value in pass_curve(metrics)[-1:]}


def sources(metrics: Mapping[str, float]) -> dict[str, float]:
    """Accuracy by data source; empty if there was only one."""
    by_source = {}
    for full_name, value in metrics.items():
        source, _, name = full_name.rpartition("/")
        if source and (name == "accuracy" or name.startswith("avg@")):  # Of one completion a prompt, or of several.
            by_source[source] = value
    return by_source


def _pass_curves(records: Sequence[RunRecord]) -> str | None:
    """Training that only sharpens lifts the left end; one that teaches lifts the right one too."""
    series = []
    for run, record in enumerate(records):
        found = [evaluation for evaluation in record.held_out() if len(pass_curve(evaluation.metrics)) > 1]
        for place, evaluation in enumerate([*found[:1], *found[1:][-1:]]):
            label = f"{_name(records, record)}version {evaluation.policy_version}"
            points = pass_curve(evaluation.metrics)
            series.append(Series(points=points, label=label, colour=run, dashed=place == 0, dots=True))
    title = "Held-out pass@m, right at least once in m completions"
    return line_chart(title, series, x_label="completions (m)", zero=True, percent=True) if series else None


def _over_versions(records: Sequence[RunRecord]) -> str | None:
    return _chart("Held-out, by how completions are counted", records, of_many)


def _by_source(records: Sequence[RunRecord]) -> str | None:
    return _chart("Held-out accuracy by data source", records, sources)


def _chart(
    title: str, records: Sequence[RunRecord], values_of: Callable[[Mapping[str, float]], dict[str, float]]
) -> str | None:
    series = []
    for run, record in enumerate(records):
        lines: dict[str, list[Point]] = {}
        for evaluation in record.held_out():
            for name, value in values_of(evaluation.metrics).items():
                lines.setdefault(name, []).append((evaluation.policy_version, value))
        for place, (name, points) in enumerate(lines.items()):
            colour = run if len(records) > 1 else place
            label = f"{_name(records, record)}{name}"
            series.append(Series(points=points, label=label, colour=colour, dashed=place > 0, dots=True))
    return line_chart(title, series, x_label="policy version", zero=True, percent=True) if series else None


def _name(records: Sequence[RunRecord], record: RunRecord) -> str:
    """Of a run, in front of a label; nothing if it is the only one."""
    return f"{record.name} " if len(records) > 1 else ""
