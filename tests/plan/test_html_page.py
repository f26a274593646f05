"""Content and escaping of the HTML page."""

from xml.etree import ElementTree as ET

from asyncrl.plan.html_page import render, write_page
from asyncrl.plan.report import make_report
from tests.plan.plans import spread_out


def test_the_page_holds_a_table_and_well_formed_charts(tmp_path):
    rows = [
        {"name": "synchronous", "groups": 8, "seconds": 24.0, "colocated": True},
        {"name": "as planned", "groups": 8, "seconds": 9.0},
    ]
    answer = make_report(spread_out({"measured": rows, "assumptions": ["<b>bold</b> claims"], "search.publishes": 1}))
    write_page(answer, "toy & co", tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    charts = [part.partition("</svg>")[0] + "</svg>" for part in page.split("<svg")[1:]]
    titles = [ET.fromstring("<svg" + chart).get("aria-label") for chart in charts]
    assert titles == [
        "Seconds a step by split",
        "Completions decoded at once, as planned",
        "Share by staleness, as planned",
        "Seconds, measured and predicted, by row",
    ]
    assert "toy &amp; co" in page
    assert "&lt;b&gt;bold" in page
    assert "<th>2  as planned</th>" in page
    assert all(name in page for name in ("colocated synchronous", "as planned", "best found"))


def test_parts_without_data_are_not_drawn():
    page = render(make_report(spread_out(), searched=False), "toy")
    assert page.count("<svg") == 2
    assert "Assumed" not in page
