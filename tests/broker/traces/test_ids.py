"""Ids: a trace keeps its id over the lives of the broker, and no span has the id of another."""

from asyncrl.broker.traces.ids import TraceIds


def test_a_trace_keeps_its_id_when_the_broker_restarts_and_no_other_run_has_it():
    first, second, other = TraceIds("run-1", 1), TraceIds("run-1", 2), TraceIds("run-2", 1)
    assert first.trace(7) == second.trace(7)
    assert len({first.trace(7), first.trace(8), other.trace(7)}) == 3


def test_no_two_spans_of_a_run_have_one_id():
    lives = [TraceIds("run-1", term) for term in (1, 2)]
    spans = {ids.next_span() for ids in lives for _ in range(1000)}
    assert len(spans) == 2000
    assert all(0 < span < 1 << 64 for span in spans)


def test_half_of_the_traces_are_in_the_lower_half_where_samplers_look():
    ids = TraceIds("run-1", 1)
    lower = sum(ids.trace(group_id) % (1 << 64) < 1 << 63 for group_id in range(1000))
    assert 400 < lower < 600
