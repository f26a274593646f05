import xml.etree.ElementTree as ET

from asyncrl.observe.report.charts import COLOURS, Series, line_chart

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
    assert dot.get("class") is None
    assert (dot.get("cx"), dot.get("cy")) == ("300.0", "128.0")


def test_a_very_long_line_stays_small() -> None:
    points = [(float(step), float(step % 97)) for step in range(100_000)]

    assert len(line_chart("Reward", [Series(points=points)])) < 20_000
