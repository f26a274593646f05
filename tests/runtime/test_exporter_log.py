"""Log of OpenTelemetry: it is told once a minute as our events, and nothing else hears it."""

import logging

import pytest
import structlog

from asyncrl.runtime.exporter import EVERY_S, Reports


@pytest.fixture
def source():
    return logging.getLogger("a-library")


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(structlog, "is_configured", lambda: True)
    with structlog.testing.capture_logs() as events:
        yield events


def test_a_kind_of_trouble_is_told_once_a_minute(source, told):
    now_s = 0.0
    reports = Reports(source, clock=lambda: now_s)
    for _ in range(1000):
        source.warning("no answer from %s", "10.0.0.9")
        source.getChild("queue").warning("it is full")
    now_s = EVERY_S
    source.warning("no answer from %s", "10.0.0.8")
    reports.close()
    causes = [event["cause"] for event in told]
    assert causes == ["no answer from 10.0.0.9", "it is full", "no answer from 10.0.0.8"]
    assert {(event["event"], event["log_level"]) for event in told} == {("traces.trouble", "warning")}


def test_an_exception_is_told_in_words(source, told):
    reports = Reports(source)
    try:
        raise ValueError("bad header")
    except ValueError:
        source.exception("while sending")
    reports.close()
    assert [event["cause"] for event in told] == ["while sending: bad header"]


def test_others_hear_the_library_again_once_it_is_closed(source, told, caplog):
    with caplog.at_level(logging.WARNING):
        reports = Reports(source)
        source.warning("taken over")
        reports.close()
        source.warning("free again")
    assert [record.getMessage() for record in caplog.records] == ["free again"]


def test_what_is_no_trouble_is_not_told(source, told):
    source.setLevel(logging.DEBUG)
    reports = Reports(source)
    source.info("sent 5 spans")
    reports.close()
    source.setLevel(logging.NOTSET)
    assert told == []
