"""Spans of a trace as plain data, before anything of OpenTelemetry."""

from collections.abc import Callable, Sequence

from msgspec import Struct

Attribute = str | int | float | bool


class SpanEvent(Struct, frozen=True):
    """Something that happened at one moment of a span."""

    name: str
    at_s: float
    """Unix time."""
    attributes: dict[str, Attribute] = {}


class Span(Struct, frozen=True):
    """A span that has ended."""

    name: str
    trace_id: int
    """128 bits."""
    span_id: int
    """64 bits."""
    parent_id: int
    """Span of the same trace; 0 for the root."""
    start_s: float
    """Unix time, as is ``end_s``."""
    end_s: float
    attributes: dict[str, Attribute]
    events: list[SpanEvent]
    error: str = ""
    """Reason of a failure; empty if there is none."""


SendSpans = Callable[[Sequence[Span]], None]
"""Takes spans over; it returns at once and never raises."""
