"""
Metrics and health of this process over HTTP, for Prometheus and Kubernetes, and traces of a run; off unless
``--metrics`` or ``--traces`` is given.

    /metrics    every sample of the table          asyncrl/records/metrics.py
    /healthz    200 while the event loop keeps up  a process whose loop is blocked does not answer at all
    /readyz     200 while it serves the run, with its state in words

There is no password: by default it listens on the loopback interface alone.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.log import get_logger
from asyncrl.records.metrics import Sample
from asyncrl.records.metrics_targets import Sources, collect_in, discoverable
from asyncrl.records.spans import SendSpans
from asyncrl.runtime.http_server import Exposition, LoopLag, Response, require_client, serve, watch
from asyncrl.runtime.service_manager import ServiceManager
from asyncrl.wire.addresses import (
    LOOPBACK,
    TCP,
    bracketed,
    check_address,
    host_of,
    is_loopback,
    is_wildcard,
    port_of,
    tcp,
)

log = get_logger()

METRICS_VARIABLE = "ASYNCRL_METRICS"
"""Environment variable: ``--metrics`` of every process that is started with it."""
OPEN_VARIABLE = "ASYNCRL_METRICS_OPEN"
"""Environment variable: ``--metrics-open``, likewise."""
TARGETS_VARIABLE = "ASYNCRL_METRICS_TARGETS"
"""Environment variable: ``--metrics-targets``, likewise."""
MAX_LAG_S = 5.0
"""Delay of the event loop from which on a process is not healthy: long before its heartbeats are missed."""


class MetricsOptions(Struct, frozen=True):
    """Address at which a process serves its metrics."""

    host: str
    port: int
    """0 takes a free one."""
    targets: Path | None = None
    """Folder in which a file tells Prometheus the address; None tells nobody."""
    run: str = ""
    """Name of the run, if it is known from the start."""

    def of_child(self, number: int) -> "MetricsOptions":
        """Address of a child process, which has a port of its own: ``number`` ports after this one."""
        return MetricsOptions(self.host, self.port + number if self.port else 0, self.targets, self.run)

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{bracketed(self.host)}:{self.port}"

    @property
    def is_open(self) -> bool:
        """True if other machines reach it."""
        return not is_loopback(tcp(self.host, self.port))

    def as_options(self) -> list[str]:
        """Command-line options of `asyncrl-node`. A process without ``--run-dir`` learns the name of its run later."""
        targets = ["--metrics-targets", str(self.targets)] if self.targets else []
        return ["--metrics", self.address, *(["--metrics-open"] if self.is_open else []), *targets]

    def as_variables(self) -> dict[str, str]:
        """Environment of a process that serves its metrics there."""
        return {METRICS_VARIABLE: self.address} | ({OPEN_VARIABLE: "1"} if self.is_open else {})


def metrics_options(
    address: str | None, *, is_open: bool, run: Path | None = None, targets: Path | None = None
) -> MetricsOptions | None:
    """
    The options of ``--metrics [HOST:]PORT``; None without one.

    Args:
        is_open: ``--metrics-open`` was given: an address that other machines reach is meant.
        run: Run directory, if the process knows it.
        targets: Folder for the file that Prometheus discovers; None takes ``metrics`` in the run directory.

    Raises:
        ConfigError: The address is none, or is open without ``is_open``, or `prometheus_client` is not installed.
    """
    if address is None:
        if is_open:
            raise ConfigError(
                f"--metrics-open ({OPEN_VARIABLE}) is given without --metrics HOST:PORT ({METRICS_VARIABLE}), the "
                "address that it opens"
            )
        return None
    given = f"tcp://{address}" if ":" in address else f"tcp://{LOOPBACK}:{address}"
    if not TCP.fullmatch(given):
        raise ConfigError(f"--metrics is {address!r}: expected PORT or HOST:PORT, such as {LOOPBACK}:9400")
    check_address(given, "--metrics", binds=True)
    if not is_loopback(given) and not is_open:
        raise ConfigError(
            f"--metrics {address} lets everyone who reaches this machine read the metrics, without a key: take "
            f"{LOOPBACK}:{port_of(given)}, or add --metrics-open ({OPEN_VARIABLE}=1)"
        )
    require_client()
    host = host_of(given)
    targets = targets or (run / "metrics" if run else None)
    return MetricsOptions(
        "0.0.0.0" if host == "*" else host, port_of(given), targets, run.resolve().name if run else ""
    )


@asynccontextmanager
async def metrics_served(
    options: MetricsOptions, labels: Mapping[str, str], manager: ServiceManager
) -> AsyncIterator[str]:
    """
    Serve the metrics and the health of this process until the block ends. Yields HOST:PORT.

    Args:
        labels: ``role`` and ``node`` of the process.
        manager: Knows what the process does.

    Raises:
        LinkError: Another process has the port.
        ConfigError: The address cannot be bound, or the file for Prometheus cannot be written.
    """
    clock = asyncio.get_running_loop().time
    lag, sources = LoopLag(), Sources()
    collect_in(sources)

    def samples() -> Iterator[Sample]:
        yield Sample("asyncrl_ready", manager.state == "ready")
        yield Sample("asyncrl_event_loop_lag_seconds", lag.longest_s(clock()))
        yield from sources

    exposition = Exposition(labels, samples)

    def metrics(headers: Mapping[str, str]) -> Response:
        body, content_type = exposition.text(headers.get("accept", ""))
        return Response(HTTPStatus.OK, body, content_type)

    pages = {
        "/metrics": metrics,
        "/healthz": lambda _: health(lag.longest_s(clock())),
        "/readyz": lambda _: readiness(manager, labels),
    }
    watching = asyncio.create_task(watch(lag, clock, is_starting=lambda: manager.state == "starting"), name="lag")
    try:
        async with serve(pages, options.host, options.port) as port:
            with ExitStack() as stack:
                host = LOOPBACK if is_wildcard(tcp(options.host, port)) else options.host
                address = f"{bracketed(host)}:{port}"
                if options.targets:
                    stack.enter_context(discoverable(options.targets, options.run, labels["node"], address))
                log.info("metrics.served", url=f"http://{address}/metrics")
                yield address
    finally:
        watching.cancel()


def health(lag_s: float) -> Response:
    """Answer of ``/healthz``: 503 if the event loop was blocked for longer than `MAX_LAG_S`."""
    is_alive = lag_s <= MAX_LAG_S
    body = {"alive": is_alive, "event_loop_lag_s": round(lag_s, 3), "most_s": MAX_LAG_S}
    return _json(body, is_good=is_alive)


def readiness(manager: ServiceManager, labels: Mapping[str, str]) -> Response:
    """Answer of ``/readyz``: 503 unless the process has joined the run and serves it."""
    is_ready = manager.state == "ready"
    return _json({"ready": is_ready, "state": manager.state, "status": manager.status, **labels}, is_good=is_ready)


def _json(body: Mapping[str, object], *, is_good: bool) -> Response:
    status = HTTPStatus.OK if is_good else HTTPStatus.SERVICE_UNAVAILABLE
    return Response(status, json.dumps(body).encode() + b"\n", "application/json")


# ── traces ────────────────────────────────────────────────────────────────────────────────────
# Traces of a run, sent to a collector while its broker serves it; off unless ``--traces`` is given.

if TYPE_CHECKING:
    from asyncrl.runtime.exporter import SpanExport


def require_opentelemetry() -> "type[SpanExport]":
    """The sender of spans; raises `ConfigError` unless `opentelemetry` is installed."""
    try:
        from asyncrl.runtime.exporter import SpanExport  # noqa: PLC0415  an extra
    except ImportError as error:
        raise ConfigError("--traces needs opentelemetry: pip install 'asyncrl[traces]'") from error
    return SpanExport


@asynccontextmanager
async def spans_sent(run: str) -> AsyncIterator[SendSpans]:
    """
    Send spans of the run of this name until the block ends, and then those that still wait. Yields where they go.

    Raises:
        ConfigError: `opentelemetry` is not installed, or a variable of its environment is wrong.
    """
    export = require_opentelemetry()(run)
    try:
        yield export.send
    finally:
        await asyncio.to_thread(export.close)
