"""Spans of a trajectory against its summary and the bound of its schedule."""

import pytest

from asyncrl.broker.audit.token_rules import span_problems
from asyncrl.broker.ledger.records import Result
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import Span, TrajectorySummary, Unit

RESULT = Result(Unit(3, 1), 1, SpoolRef("s", 0, 0, 1, 0), TrajectorySummary(5, 4, 6, 7, 2, "stop"))
SPANS = [Span(6, 0, 2), Span(7, 2, 5)]


def problems(spans: list[Span], num_tokens: int = 5, trained: int | None = 7, bound: int | None = 1) -> list[str]:
    return list(span_problems(RESULT, spans, num_tokens, trained, bound))


def test_spans_that_fit_their_record() -> None:
    assert problems(SPANS) == []


def test_another_number_of_tokens() -> None:
    longer = [Span(6, 0, 2), Span(7, 2, 6)]
    assert problems(longer, num_tokens=6) == ["unit 3/1 has 6 tokens: expected 5, as in the ledger"]


@pytest.mark.parametrize(
    "spans",
    [
        [Span(6, 0, 2), Span(7, 3, 5)],
        [Span(6, 0, 3), Span(7, 2, 5)],
        [Span(6, 0, 2), Span(7, 2, 4)],
        [Span(6, 0, 2), Span(6, 2, 2), Span(7, 2, 5)],
        [],
    ],
    ids=["gap", "overlap", "short", "empty span", "none"],
)
def test_spans_that_do_not_cover_the_tokens(spans: list[Span]) -> None:
    assert problems(spans) == ["unit 3/1 has spans that do not cover its 5 tokens once, in order"]


def test_an_older_token_than_the_summary_says_is_stale_if_it_was_trained_on() -> None:
    spans = [Span(6, 0, 2), Span(2, 2, 3), Span(7, 3, 5)]
    hidden = "unit 3/1 has tokens of the versions 2 to 7: expected 6 to 7, as in the ledger"
    assert problems(spans) == [
        hidden,
        "unit 3/1 is stale beyond its bound: version 7 was trained on tokens of version 2, expected at most 1 versions "
        "between them, got 5",
    ]
    assert problems(spans, trained=None) == [hidden]
    assert problems(spans, bound=None) == [hidden]
