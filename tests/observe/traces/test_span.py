"""Plain spans: they are values."""

import pytest

from asyncrl.observe.traces.span import Span


def test_a_span_that_has_ended_does_not_change():
    span = Span("group", 1, 2, 0, 10.0, 11.0, {}, [])
    with pytest.raises(AttributeError):
        span.name = "trajectory"  # type: ignore[misc]
