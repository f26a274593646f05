"""The switch --traces: it needs a package, and spans are sent before the block ends."""

import asyncio
import sys

import pytest

from asyncrl.errors import ConfigError
from asyncrl.records.spans import TraceSpan
from asyncrl.runtime import metrics_server
from asyncrl.runtime.metrics_server import require_opentelemetry, spans_sent

SPAN = TraceSpan("group", 1, 2, 0, 10.0, 11.0, {}, [])


class Export:
    def __init__(self, run):
        self.run, self.sent, self.is_closed = run, [], False
        made.append(self)

    def send(self, spans):
        self.sent += spans

    def close(self):
        self.is_closed = True


made: list[Export] = []


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "asyncrl.runtime.exporter", None)
    with pytest.raises(ConfigError, match=r"--traces needs opentelemetry: pip install 'asyncrl\[traces\]'"):
        require_opentelemetry()


def test_spans_of_a_run_that_fails_are_sent_too(monkeypatch):
    monkeypatch.setattr(metrics_server, "require_opentelemetry", lambda: Export)

    async def scene():
        async with spans_sent("run-a") as send:
            send([SPAN])
            raise RuntimeError("the run failed")

    with pytest.raises(RuntimeError, match="the run failed"):
        asyncio.run(scene())
    (export,) = made
    assert (export.run, export.sent, export.is_closed) == ("run-a", [SPAN], True)
