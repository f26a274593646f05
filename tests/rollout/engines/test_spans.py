from asyncrl.messages.trajectory import Span
from asyncrl.rollout.engines.spans import Spans


def spans_with(*versions: tuple[int, int]) -> Spans:
    spans = Spans()
    for policy_version, num_tokens in versions:
        spans.set_version(policy_version, num_tokens)
    return spans


def test_spans_cover_every_token_once():
    assert spans_with((3, 0), (4, 2), (6, 5)).until(9) == [Span(3, 0, 2), Span(4, 2, 5), Span(6, 5, 9)]


def test_a_version_without_tokens_has_no_span():
    assert spans_with((3, 0), (4, 0), (5, 2), (6, 2)).until(4) == [Span(4, 0, 2), Span(6, 2, 4)]


def test_the_newest_version_may_have_no_token_yet():
    assert spans_with((3, 0), (4, 2)).until(2) == [Span(3, 0, 2)]


def test_the_same_version_again_extends_its_span():
    assert spans_with((3, 0), (3, 2), (4, 5), (3, 5)).until(6) == [Span(3, 0, 6)]


def test_resumed_tokens_keep_their_versions():
    spans = Spans([Span(3, 0, 2), Span(4, 2, 5)])
    spans.set_version(6, 5)

    assert spans.until(7) == [Span(3, 0, 2), Span(4, 2, 5), Span(6, 5, 7)]
    assert spans.until(4) == [Span(3, 0, 2), Span(4, 2, 4)]
