"""Rows of a plan report."""

from msgspec.structs import replace

from asyncrl.plan.report import make_report
from asyncrl.plan.table import HEAD, MEASURED_HEAD, measured_rows, rows, split
from tests.plan.plans import a_plan


def test_a_row_has_the_split_the_step_time_and_the_speed_up() -> None:
    table = dict(rows(make_report(a_plan(), searched=False)))
    assert list(table) == ["colocated synchronous", "as planned"]
    assert [len(cells) for cells in table.values()] == [len(HEAD)] * 2
    assert table["colocated synchronous"][:5] == ["2", "0", "1", "12", "1.00x"]
    assert table["as planned"][:5] == ["1 + 1", "0", "1", "14", "0.86x"]


def test_the_best_plan_has_a_row_after_a_search() -> None:
    report = make_report(a_plan())
    assert report.found is not None
    name, cells = list(rows(report))[-1]
    assert (name, cells[0]) == ("best found", split(report.found.best))


def test_a_ratio_is_empty_without_a_measured_baseline() -> None:
    report = make_report(a_plan({"measured": [{"name": "ours", "groups": 2, "seconds": 7.0}]}), searched=False)
    ((name, cells),) = measured_rows(report.comparisons)
    assert (name, cells) == ("ours", ["2", "7.0", "14.0", "", "", "+100%"])
    assert len(cells) == len(MEASURED_HEAD)
    with_ratios = replace(report.comparisons[0], measured_ratio=2.0, predicted_ratio=1.5)
    assert next(measured_rows([with_ratios]))[1][3:] == ["2.00x", "1.50x", "-25%"]
