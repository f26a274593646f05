import math
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from asyncrl.records.history import StepHistory
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import read_run
from asyncrl.tools.report.charts import COLOURS, Series, draw, interval, line_chart, round_axis, thin, tight_axis

NUMBERS = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=20)


@given(NUMBERS, st.booleans())
@example([5e-324], True)
def test_every_value_lies_on_a_round_axis_with_two_to_six_ticks(values: list[float], zero: bool) -> None:
    axis = round_axis(values, 220, -180, zero=zero)

    assert all(40 - 1e-6 <= axis.place(value) <= 220 + 1e-6 for value in values)
    assert 2 <= len(axis.ticks()) <= 7
    assert math.isclose(axis.ticks()[0], axis.low, abs_tol=axis.step * 1e-6)
    assert math.isclose(axis.ticks()[-1], axis.high, abs_tol=axis.step * 1e-6)
    if zero:
        assert axis.low <= 0 <= axis.high


def test_a_round_axis_ends_on_the_next_ticks() -> None:
    axis = round_axis([0.12, 0.93], 220, -200)

    assert (axis.low, axis.high) == (0, 1)
    assert axis.ticks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert axis.place(0.25) == 170


def test_a_tight_axis_ends_where_the_values_do() -> None:
    axis = tight_axis([0, 59], 58, 484)

    assert (axis.low, axis.high) == (0, 59)
    assert axis.ticks() == [0, 10, 20, 30, 40, 50]


def test_no_tick_stands_between_two_steps() -> None:
    assert tight_axis([3, 5], 0, 100).ticks() == [3, 4, 5]
    assert tight_axis([3, 5], 0, 100, whole=False).step == 0.5


@pytest.mark.parametrize("values", [[], [0.0], [5.0], [-3.0, -3.0]])
def test_equal_values_still_have_an_axis(values: list[float]) -> None:
    for axis in (tight_axis(values, 0, 100), round_axis(values, 0, 100)):
        assert axis.low < axis.high
        assert all(0 < axis.place(value) < 100 for value in values)


def test_values_that_are_all_zero_lie_at_the_bottom_of_an_axis_from_zero() -> None:
    axis = round_axis([0.0, 0.0], 220, -180, zero=True)
    assert (axis.low, axis.high, axis.place(0.0)) == (0, 1, 220)


@given(st.lists(st.floats(-1e6, 1e6), max_size=400))
def test_thinning_keeps_order_and_both_extremes(ys: list[float]) -> None:
    points = [(float(x), y) for x, y in enumerate(ys)]
    kept = thin(points, most=50)

    assert len(kept) <= 50
    assert kept == [point for point in points if point in set(kept)]
    if ys:
        assert min(y for _, y in kept) == min(ys)
        assert max(y for _, y in kept) == max(ys)


# ── test charts ───────────────────────────────────────────────────────────────────────────────

SVG = "{http://www.w3.org/2000/svg}"


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_points_lie_where_the_axes_say() -> None:
    """x runs 58 .. 542 for 0 .. 10, y 220 .. 36 for 0 .. 1."""
    root = ET.fromstring(line_chart("Reward", [Series(points=[(0, 0), (5, 0.5), (10, 1)])]))

    line = root.find(f"{SVG}polyline")
    assert line is not None
    assert line.get("points") == "58.0,220.0 300.0,128.0 542.0,36.0"
    assert texts(root) == ["Reward", "0", "0.2", "0.4", "0.6", "0.8", "1.0", "0", "2", "4", "6", "8", "10", "step"]


def test_lines_differ_in_colour_and_dash_and_are_named_in_the_legend() -> None:
    series = [
        Series(points=[(0, 1), (1, 2)], label="mean"),
        Series(points=[(0, 3), (1, 4)], label="longest", colour=1, dashed=True),
    ]
    root = ET.fromstring(line_chart("Length", series))

    lines = root.findall(f"{SVG}polyline")
    assert [line.get("stroke") for line in lines] == list(COLOURS[:2])
    assert [line.get("stroke-dasharray") for line in lines] == [None, "4 3"]
    assert texts(root)[1:3] == ["mean", "longest"]


def test_a_long_legend_takes_rows_and_the_plot_makes_room() -> None:
    series = [
        Series(points=[(0, 0), (1, 1)], label=f"run number {number} of six", colour=number) for number in range(6)
    ]
    root = ET.fromstring(line_chart("Reward", series))

    legend = [element for element in root.iter(f"{SVG}text") if (element.text or "").startswith("run")]
    rows = sorted({int(element.get("y", "")) for element in legend})
    assert rows == [40, 57]
    line = root.find(f"{SVG}polyline")
    assert line is not None
    assert line.get("points") == "58.0,220.0 542.0,70.0"


def test_a_band_is_drawn_behind_its_line_and_widens_the_axis() -> None:
    series = Series(points=[(0, 0.5), (10, 0.5)], band=[(0, 0, 1), (10, 0, 1)], dots=True)
    root = ET.fromstring(line_chart("Accuracy", [series], percent=True))

    tags = [element.tag.removeprefix(SVG) for element in root]
    assert tags.index("polygon") < tags.index("polyline")
    band = root.find(f"{SVG}polygon")
    assert band is not None
    assert band.get("points") == "58.0,36.0 542.0,36.0 542.0,220.0 58.0,220.0"
    assert "100 %" in texts(root)


def test_a_point_shows_its_values_on_hover() -> None:
    root = ET.fromstring(line_chart("Reward", [Series(points=[(0, 0.25), (3, 0.5)], label="tiny")]))

    assert [title.text for title in root.iter(f"{SVG}title")] == ["tiny, step 0: 0.25", "tiny, step 3: 0.5"]


def test_labels_cannot_inject_svg() -> None:
    root = ET.fromstring(line_chart("<b>&", [Series(points=[(0, 1)], label="<script>")], x_label='"x"'))

    assert {"<b>&", "<script>", '"x"'} <= set(texts(root))


def test_a_single_point_is_visible() -> None:
    root = ET.fromstring(line_chart("Reward", [Series(points=[(7, 0.5)])]))

    dot = root.find(f"{SVG}circle")
    assert dot is not None
    assert dot.get("class") == "f0"
    assert (dot.get("cx"), dot.get("cy")) == ("300.0", "128.0")


def test_a_very_long_line_stays_small() -> None:
    points = [(float(step), float(step % 97)) for step in range(100_000)]

    assert len(line_chart("Reward", [Series(points=points)])) < 20_000


# ── test curves ───────────────────────────────────────────────────────────────────────────────

MakeRun = Callable[..., RunDirectory]


def test_the_interval_is_wilsons() -> None:
    """8 right of 10, z = 1.96: centre (0.8 + 0.19208) / 1.38416, half width sqrt(0.061466 + 0.036895) / 1.38416."""
    low, high = interval(0.8, 10)

    assert low == pytest.approx(0.4902, abs=1e-4)
    assert high == pytest.approx(0.9433, abs=1e-4)


@given(st.integers(1, 1000), st.integers(0, 1000))
def test_the_interval_holds_the_accuracy_and_stays_within_0_and_1(num_prompts: int, right: int) -> None:
    accuracy = min(right, num_prompts) / num_prompts
    low, high = interval(accuracy, num_prompts)

    assert -1e-12 <= low <= accuracy + 1e-12
    assert accuracy - 1e-12 <= high <= 1 + 1e-12


def test_curves_without_numbers_are_named_instead_of_drawn(make_run: MakeRun) -> None:
    """The made-up run recorded no KL at all, and a gradient norm that was never a number."""
    charts, empty = draw([read_run(make_run().path)])

    assert empty == [
        "Gradient norm before clipping",
        "KL from the policy that sampled (k3), nats per token",
        "Entropy of trained tokens, mean, nats",
        "Log-ratio of trained policy and sampler, nats",
        "Tokens clipped, completions cut",
    ]
    assert len(charts) == 9


def test_optional_curves_are_drawn_if_recorded_and_not_reported_as_empty(make_run: MakeRun) -> None:
    run = read_run(make_run().path)
    lines = [{**line, "reward/form": 0.5, "reward/terse": 0.2, "entropy": 1.0} for line in run.metrics]
    charts, empty = draw([structs.replace(run, step_history=StepHistory(lines))])

    assert sum("Parts of the reward" in chart for chart in charts) == 1
    assert any(">form</text>" in chart and ">terse</text>" in chart for chart in charts)
    assert sum("Entropy of trained tokens" in chart for chart in charts) == 1
    assert not any("critic" in title for title in empty)


def test_labels_name_the_part_and_with_several_runs_the_run(make_run: MakeRun) -> None:
    one, two = (read_run(make_run(name).path) for name in ("first", "second"))
    alone = "".join(draw([one])[0])
    together = "".join(draw([one, two])[0])

    assert ">longest</text>" in alone
    assert ">first</text>" not in alone
    assert ">first longest</text>" in together
    assert ">second longest</text>" in together


def test_several_runs_are_also_compared_over_time(make_run: MakeRun) -> None:
    one, two = (read_run(make_run(name).path) for name in ("first", "second"))

    assert not any("over wall time" in chart for chart in draw([one])[0])
    assert sum("over wall time" in chart for chart in draw([one, two])[0]) == 1


def test_a_restart_is_a_thin_line_between_two_steps_with_a_word_in_the_legend(make_run: MakeRun) -> None:
    directory = make_run()
    assert not any("restart" in chart for chart in draw([read_run(directory.path)])[0])
    directory.append_event("run.resumed", start=2, time_s=9.0)
    reward = draw([read_run(directory.path)])[0][0]

    axis = tight_axis(range(10), 58, 560 - 58 - 18)
    assert reward.count('class="restart c5"') == 2, "the line, and that of the legend"
    assert f'x1="{axis.place(3.5):.1f}"' in reward
    assert ">broker started again</text>" in reward
    _, over_time, compared, *_ = draw([read_run(make_run("other").path), read_run(directory.path)])[0]
    for chart in (over_time, compared):
        assert chart.count('class="restart c1"') == 1, "in the colour of its run"
