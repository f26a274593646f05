from asyncrl.messages import Span
from asyncrl.rollout.engines.spans import Spans


def spans_with(*turns: tuple[int, int]) -> Spans:
    spans = Spans()
    for policy_version, written in turns:
        spans.turn(policy_version, written)
    return spans


def test_spans_cover_every_token_once():
    assert spans_with((3, 0), (4, 2), (6, 5)).until(9) == [Span(3, 0, 2), Span(4, 2, 5), Span(6, 5, 9)]


def test_a_version_that_wrote_nothing_has_no_span():
    assert spans_with((3, 0), (4, 0), (5, 2), (6, 2)).until(4) == [Span(4, 0, 2), Span(6, 2, 4)]


def test_the_newest_version_may_not_have_written_yet():
    assert spans_with((3, 0), (4, 2)).until(2) == [Span(3, 0, 2)]


def test_the_same_version_again_goes_on_with_its_span():
    assert spans_with((3, 0), (3, 2), (4, 5), (3, 5)).until(6) == [Span(3, 0, 6)]


def test_what_was_begun_elsewhere_keeps_its_authors():
    spans = Spans([Span(3, 0, 2), Span(4, 2, 5)])
    spans.turn(6, 5)

    assert spans.until(7) == [Span(3, 0, 2), Span(4, 2, 5), Span(6, 5, 7)]
    assert spans.until(4) == [Span(3, 0, 2), Span(4, 2, 4)]
