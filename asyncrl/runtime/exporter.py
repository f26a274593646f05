"""
Spans to a collector, by OTLP over HTTP. `opentelemetry` (extra ``traces``) is imported here alone.

    Span ─▶ sampled? ─▶ span of the SDK ─▶ queue ─ thread of the SDK ─▶ collector
                                             └─ full, as the collector is away: the oldest is dropped

The standard variables ``OTEL_*`` say where to, how many and under which name.
"""

import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE, OTEL_SDK_DISABLED
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, Sampler
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from asyncrl.errors import ConfigError
from asyncrl.log import get_logger
from asyncrl.records.spans import PREFIX, ROOT, Attribute, TraceSpan
from asyncrl.version import VERSION
from asyncrl.wire.refusals import Allowance

# ── reports ───────────────────────────────────────────────────────────────────────────────────
# Log of OpenTelemetry as events of ours: each kind once a minute, however long the collector is away.

log = get_logger()

EVERY_S = 60.0


class Reports(logging.Handler):
    """
    Takes what a logger is told, from any thread, until it is closed. Other handlers do not see it meanwhile.

    The events have the fields of the task that made this object, such as the name of the node.
    """

    def __init__(self, source: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._source = source
        self._propagated = source.propagate
        self._clock = clock
        self._allowance = Allowance(1 / EVERY_S, 1)
        self._task = contextvars.copy_context()
        source.propagate = False
        source.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        # By the text without its values: what is told is one of a few sentences.
        if self._allowance.take(str(record.msg), self._clock()):
            error = f": {record.exc_info[1]}" if record.exc_info else ""
            self._task.run(log.warning, "traces.trouble", cause=f"{record.getMessage()}{error}")

    def close(self) -> None:
        self._source.removeHandler(self)
        self._source.propagate = self._propagated
        super().close()


# ── exporter ──────────────────────────────────────────────────────────────────────────────────

QUEUE = 16384
"""Most spans that wait for the collector, unless the variable says otherwise. A version that goes live ends the groups
of whole steps at once; OpenTelemetry's 2048 are too few for them."""
FLUSH_S = 3.0
"""Time to send what waits, at the end."""
GIVE_UP_S = 0.5
"""Time after it for the SDK's thread to notice that it is to stop."""


class SpanExport:
    """
    Sends spans from a thread of its own, until it is closed. It takes the log of OpenTelemetry over.

    Args:
        run: Name of the run.
        exporter: Sends batches of spans; None is the one that the environment describes.

    Raises:
        ConfigError: A variable of the environment cannot be.
    """

    def __init__(self, run: str, exporter: SpanExporter | None = None) -> None:
        self._reports = Reports(logging.getLogger("opentelemetry"))
        try:
            self._sampler = _sampler()
            self._resource = _resource(run)
            self._exporter = exporter or OTLPSpanExporter()
            size = None if OTEL_BSP_MAX_QUEUE_SIZE in os.environ else QUEUE
            self._queue = BatchSpanProcessor(self._exporter, max_queue_size=size)
        except ValueError as error:
            self._reports.close()
            raise ConfigError(f"--traces: a variable OTEL_* is wrong: {error}") from error
        self._scope = InstrumentationScope("asyncrl", VERSION)

    def send(self, spans: Sequence[TraceSpan]) -> None:
        """Queue those spans whose traces are sampled."""
        for span in spans:
            sampled = self._sampler.should_sample(Context(), span.trace_id, ROOT)
            if sampled.decision is Decision.RECORD_AND_SAMPLE:
                self._queue.on_end(self._readable(span))

    def close(self) -> None:
        """Send what waits, for at most `FLUSH_S` seconds or a little longer, and drop the rest."""
        closing = threading.Thread(target=self._queue.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(FLUSH_S)
        if closing.is_alive():
            self._exporter.shutdown()  # The thread would wait for its next try.
            closing.join(GIVE_UP_S)
        self._reports.close()

    def _readable(self, span: TraceSpan) -> ReadableSpan:
        """The span of the SDK, made without a tracer: that would take five times as long."""
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace_id, span.span_id),
            parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
            resource=self._resource,
            attributes=_named(span.attributes),
            events=[Event(event.name, _named(event.attributes), _ns(event.at_s)) for event in span.events],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
            start_time=_ns(span.start_s),
            end_time=_ns(span.end_s),
            instrumentation_scope=self._scope,
        )


def _sampler() -> Sampler:
    """The sampler that the environment names; only a provider reads it."""
    if os.environ.get(OTEL_SDK_DISABLED, "").strip().lower() == "true":
        return ALWAYS_OFF
    return TracerProvider(shutdown_on_exit=False).sampler


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _resource(run: str) -> Resource:
    """Attributes of all spans; ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` come before ours."""
    ours = {SERVICE_NAME: "asyncrl", SERVICE_VERSION: VERSION, f"{PREFIX}run": run}
    return Resource.create(ours).merge(OTELResourceDetector().detect())


def _named(attributes: dict[str, Attribute]) -> dict[str, Attribute]:
    return {f"{PREFIX}{name}": value for name, value in attributes.items()}


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
