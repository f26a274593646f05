"""Plain spans: they are values."""

import re
from pathlib import Path

import pytest

from asyncrl.records.spans import ATTRIBUTES, EVENTS, PREFIX, ROOT, SPANS, SpanEventKind, SpanKind, TraceSpan


def test_a_span_that_has_ended_does_not_change():
    span = TraceSpan("group", 1, 2, 0, 10.0, 11.0, {}, [])
    with pytest.raises(AttributeError):
        span.name = "trajectory"  # type: ignore[misc]


# ── test table ────────────────────────────────────────────────────────────────────────────────
# The table of spans is complete in itself, and the documentation has the same.

PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")


def table(first: str) -> list[list[str]]:
    """Cells of the rows of the page's table whose first column is called ``first``."""
    rows = re.search(rf"^\| {first} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert rows, f"no table with a column {first!r}"
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in rows[1].splitlines()]


def code(*names: str) -> str:
    return ", ".join(f"`{name}`" for name in names)


def test_every_span_and_event_has_a_parent_and_attributes_that_are_explained():
    assert {kind.parent for kind in SPANS.values()} == {"", ROOT, "trajectory"}
    assert [name for name, kind in SPANS.items() if not kind.parent] == [ROOT]
    assert {span for event in EVENTS.values() for span in event.spans} < SPANS.keys()
    kinds: list[SpanKind | SpanEventKind] = [*SPANS.values(), *EVENTS.values()]
    used = {name for kind in kinds for name in kind.attributes}
    assert used == ATTRIBUTES.keys()


def test_the_page_has_the_spans_of_the_table():
    assert table("span") == [
        [code(name), code(kind.parent) if kind.parent else "", kind.start, kind.end, code(*kind.attributes)]
        for name, kind in SPANS.items()
    ]


def test_the_page_has_the_events_of_the_table():
    assert table("event") == [
        [code(name), code(*event.spans), event.meaning, code(*event.attributes)] for name, event in EVENTS.items()
    ]


def test_the_page_has_the_attributes_of_the_table():
    assert table("attribute") == [[code(name), meaning] for name, meaning in ATTRIBUTES.items()]
    assert f"`{PREFIX}`" in PAGE
