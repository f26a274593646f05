"""Spans as a collector receives them; and a collector that is away costs the run nothing."""

import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

import structlog
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from asyncrl.errors import ConfigError
from asyncrl.records.spans import SpanEvent, TraceSpan
from asyncrl.runtime import exporter
from asyncrl.runtime.exporter import EVERY_S, Reports, SpanExport

TRACE = 0x11111111111111112222222222222222
STORED = SpanEvent("progress stored", 10.5, {"tokens": 8})
CHILD = TraceSpan(
    "generating", TRACE, 5, 3, 10.25, 11.5, {"node": "rollout-0", "tokens": 24}, [STORED], "out of memory"
)
ROOT = TraceSpan("group", TRACE, 3, 0, 10.0, 12.0, {"group_id": 7}, [])


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    """The environment of the machine says nothing about traces."""
    import os

    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def exported(*spans: TraceSpan):
    """What the SDK exports of these spans."""
    kept = InMemorySpanExporter()
    export = SpanExport("run-a", kept)
    export.send(spans)
    export.close()
    return kept.get_finished_spans()


def test_a_span_keeps_its_ids_times_attributes_events_and_error():
    child, root = exported(CHILD, ROOT)
    assert (child.name, child.context.trace_id, child.context.span_id) == ("generating", TRACE, 5)
    assert (child.parent.trace_id, child.parent.span_id, root.parent) == (TRACE, root.context.span_id, None)
    assert (child.start_time, child.end_time) == (10_250_000_000, 11_500_000_000)
    assert child.attributes == {"asyncrl.node": "rollout-0", "asyncrl.tokens": 24}
    assert [(event.name, event.timestamp, event.attributes) for event in child.events] == [
        ("progress stored", 10_500_000_000, {"asyncrl.tokens": 8})
    ]
    assert (child.status.status_code, child.status.description) == (StatusCode.ERROR, "out of memory")
    assert root.status.status_code == StatusCode.UNSET


def test_spans_name_the_service_and_the_run_unless_the_environment_names_another(monkeypatch):
    (root,) = exported(ROOT)
    assert root.resource.attributes.items() >= {"service.name": "asyncrl", "asyncrl.run": "run-a"}.items()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "post-training")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=reasoning")
    (root,) = exported(ROOT)
    named = {"service.name": "post-training", "asyncrl.run": "run-a", "team": "reasoning"}
    assert root.resource.attributes.items() >= named.items()


@pytest.mark.parametrize("sampler", ["traceidratio", "parentbased_traceidratio"])
def test_a_trace_is_sampled_as_a_whole(monkeypatch, sampler):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    chosen, other = 1, (1 << 64) - 1  # The sampler looks at the lower half of the id.
    spans = [
        TraceSpan(name, trace, trace % 1000 + parent + 1, parent, 1.0, 2.0, {}, [])
        for trace in (chosen, other)
        for name, parent in (("generating", 3), ("group", 0))
    ]
    assert {(span.name, span.context.trace_id) for span in exported(*spans)} == {("generating", 1), ("group", 1)}


@pytest.mark.parametrize(("name", "value"), [("OTEL_TRACES_SAMPLER", "always_off"), ("OTEL_SDK_DISABLED", "true")])
def test_the_environment_can_turn_all_of_it_off(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert exported(CHILD, ROOT) == ()


def test_a_wrong_variable_is_a_mistake_in_the_configuration(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with pytest.raises(ConfigError, match=r"--traces: a variable OTEL_\* is wrong: max_queue_size must be a positive"):
        SpanExport("run-a", InMemorySpanExporter())


# ── collectors ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """An address, and the path and body of each request to it."""
    requests: list[tuple[str, bytes]] = []

    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()
        serving.join()


def test_a_collector_gets_all_spans_by_otlp_before_the_end(monkeypatch, collector):
    address, requests = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    export = SpanExport("run-a")
    export.send([CHILD, ROOT])
    export.close()
    ((path, body),) = requests
    assert path == "/v1/traces"
    (of_resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    (of_scope,) = of_resource.scope_spans
    assert of_scope.scope.name == "asyncrl"
    assert {(span.name, span.trace_id, span.parent_span_id) for span in of_scope.spans} == {
        ("generating", TRACE.to_bytes(16, "big"), (3).to_bytes(8, "big")),
        ("group", TRACE.to_bytes(16, "big"), b""),
    }


class Hanging(SpanExporter):
    """A collector that takes the connection and never answers."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.is_shut = threading.Event()

    def export(self, spans) -> SpanExportResult:
        self.is_asked.set()
        self.is_shut.wait()
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.is_shut.set()


def test_a_collector_that_hangs_blocks_neither_the_run_nor_its_end(monkeypatch):
    monkeypatch.setattr(exporter, "FLUSH_S", 0.05)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "512")
    hanging = Hanging()
    export = SpanExport("run-a", hanging)
    export.send([CHILD] * 512)
    assert hanging.is_asked.wait(10), "a full batch is sent at once"
    export.send([CHILD] * 5000)  # More than wait: the oldest are dropped.
    export.close()
    assert hanging.is_shut.is_set()


def test_the_log_of_opentelemetry_is_given_back(monkeypatch):
    log = logging.getLogger("opentelemetry")
    before = (log.propagate, list(log.handlers))
    exported(ROOT)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    with pytest.raises(ConfigError):
        SpanExport("run-a", InMemorySpanExporter())
    assert (log.propagate, log.handlers) == before


def test_no_thread_is_left():
    exported(ROOT)
    deadline = time.monotonic() + 10
    while any(thread.name.startswith(("Otel", "traces")) for thread in threading.enumerate()):
        assert time.monotonic() < deadline


# ── reports ───────────────────────────────────────────────────────────────────────────────────────
# Log of OpenTelemetry: it is told once a minute as our events, and nothing else hears it.


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
