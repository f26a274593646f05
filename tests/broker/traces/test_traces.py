"""The shell: spans are handed over as they end, and time never goes back."""

import time
from collections.abc import Sequence

from asyncrl.broker.traces.ids import TraceIds
from asyncrl.broker.traces.traces import Traces, unix_clock
from asyncrl.observe.traces.span import Span
from tests.broker.chaos import start_all
from tests.broker.driver import a_config, a_scheduler
from tests.broker.traces.traced import TracedCluster


def test_the_clock_tells_unix_time_and_does_not_go_back_with_the_machine(monkeypatch):
    clock = unix_clock()
    before_s = clock()
    assert abs(before_s - time.time()) < 60
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert clock() >= before_s


def test_nothing_is_handed_over_when_nothing_ends():
    handed: list[Sequence[Span]] = []
    told = Traces(a_scheduler(a_config()), TraceIds("run-1", 1), handed.append)
    told.observe([], [])
    told.stepped(0)
    told.stop()
    assert handed == []


def test_spans_are_handed_over_while_the_run_goes_on():
    cluster = TracedCluster(a_config())
    start_all(cluster)
    while not cluster.is_over and not cluster.spans:
        cluster.actions()[0][1]()
    assert not cluster.is_over
