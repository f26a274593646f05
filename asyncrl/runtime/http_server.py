"""
A web server for a handful of small pages that are read by programs (GET and HEAD, one request a connection), samples as
text for Prometheus, and the lag of an event loop.

    connection ─▶ head, at most 8 KiB, within 5 s ─▶ page ─▶ response, within 5 s ─▶ closed

It runs in the event loop of the process, so that no answer comes from a process whose loop is blocked. It needs no
package, and serves what no stranger may see to loopback alone, unless the caller decides otherwise.
"""

import asyncio
import errno
import os
import platform
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, NamedTuple

from asyncrl.errors import BrokenInvariant, ConfigError, LinkError
from asyncrl.log import get_logger
from asyncrl.records.metrics import METRICS, Metric, Sample
from asyncrl.version import VERSION

log = get_logger()

MAX_HEAD_BYTES = 8 << 10
MAX_CONNECTIONS = 32
"""Connections at a time; a further one is answered with 503."""
DEADLINE_S = 5.0
"""Time for the whole of a request, and for the whole of its response."""
METHODS = ("GET", "HEAD")


class Response(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Page = Callable[[Mapping[str, str]], Response]
"""Makes the response to a request, given its headers, whose names are in lower case. It is not to wait for anything."""


class RefusedPage(Exception):
    """A request that is no request for a page."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@asynccontextmanager
async def serve(pages: Mapping[str, Page], host: str, port: int) -> AsyncIterator[int]:
    """Serve ``pages``, by path, until the block ends; ports and errors are those of `accept`."""
    num_connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        try:
            await _answer(pages, reader, writer, is_crowded=num_connections > MAX_CONNECTIONS)
        finally:
            num_connections -= 1

    async with accept(answer, host, port) as bound:
        yield bound


@asynccontextmanager
async def accept(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], host: str, port: int
) -> AsyncIterator[int]:
    """
    Call ``answer`` for each connection until the block ends. Yields the port, which is any free one if ``port`` is 0.

    A connection is closed when its answer is given, or cut when the block ends: none outlives it. That the other side
    is gone, or too slow (`OSError`, `TimeoutError`), ends an answer alone.

    Raises:
        LinkError: Another process has the port, which it may leave.
        ConfigError: The address cannot be bound.
    """
    answers: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio calls this in a task"
        answers.add(task)
        try:
            # Only the end of the server cancels; asyncio would report a cancelled connection as an error.
            with suppress(OSError, TimeoutError, asyncio.CancelledError):
                await answer(reader, writer)
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()  # Without effect once it is closed.
            answers.discard(task)

    try:
        server = await asyncio.start_server(connected, host, port, limit=MAX_HEAD_BYTES)
    except OSError as error:
        # asyncio's text repeats the address; the numbers of resolving a name are negative.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        kind = LinkError if error.errno == errno.EADDRINUSE else ConfigError
        raise kind(f"nothing can listen at {host}, port {port}: {reason}; choose another port") from error
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0)  # An answer that is called for has begun, so that it is among those that end here.
        for task in list(answers):
            task.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
        await asyncio.sleep(0)  # The loop closes what was cut.


async def _answer(
    pages: Mapping[str, Page], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_crowded: bool
) -> None:
    method, response = await _response(pages, reader, is_crowded=is_crowded)
    async with asyncio.timeout(DEADLINE_S):
        writer.write(_encoded(response, with_body=method != "HEAD"))
        await writer.drain()
        writer.close()
        await writer.wait_closed()


async def _response(
    pages: Mapping[str, Page], reader: asyncio.StreamReader, *, is_crowded: bool
) -> tuple[str, Response]:
    method = "GET"
    try:
        if is_crowded:
            raise RefusedPage(HTTPStatus.SERVICE_UNAVAILABLE, f"more than {MAX_CONNECTIONS} connections")
        async with asyncio.timeout(DEADLINE_S):
            head = await reader.readuntil(b"\r\n\r\n")
        method, path, headers = parsed(head)
        if path not in pages:
            raise RefusedPage(HTTPStatus.NOT_FOUND, f"no page {path!r}: expected one of {', '.join(pages)}")
        return method, pages[path](headers)
    except RefusedPage as refused:
        return method, Response(refused.status, f"{refused}\n".encode())
    except asyncio.LimitOverrunError:
        reason = f"the head of the request is larger than {MAX_HEAD_BYTES} bytes\n"
        return method, Response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, reason.encode())
    except asyncio.IncompleteReadError as error:
        raise ConnectionResetError("closed in the middle of a request") from error
    except TimeoutError:
        return method, Response(HTTPStatus.REQUEST_TIMEOUT, f"no complete request in {DEADLINE_S:g} s\n".encode())
    except Exception as error:  # noqa: BLE001  what is served must not end the process that does the work
        log.error("page.failed", cause=f"{type(error).__name__}: {error}")
        return method, Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"the page could not be made; see the log\n")


def parsed(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Method, path without its query, and headers of a request; raises `RefusedPage`."""
    try:
        line, *fields = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
        method, target, version = line.split(" ")
    except ValueError:  # UnicodeDecodeError is one
        raise RefusedPage(HTTPStatus.BAD_REQUEST, "the first line is no request: expected GET PATH HTTP/1.1") from None
    if version not in ("HTTP/1.0", "HTTP/1.1"):
        raise RefusedPage(HTTPStatus.BAD_REQUEST, f"{version!r} is no version of HTTP that is spoken here")
    if method not in METHODS:
        raise RefusedPage(HTTPStatus.METHOD_NOT_ALLOWED, f"method {method!r}: expected {' or '.join(METHODS)}")
    if not target.startswith("/"):
        raise RefusedPage(HTTPStatus.BAD_REQUEST, f"{target!r} is no path: expected one that begins with /")
    headers: dict[str, str] = {}
    for field in fields:
        name, colon, value = field.partition(":")
        if not colon or not name or name != name.strip():
            raise RefusedPage(HTTPStatus.BAD_REQUEST, f"{field!r} is no header: expected NAME: VALUE")
        headers[name.lower()] = value.strip()
    return method, target.partition("?")[0], headers


def _encoded(response: Response, *, with_body: bool) -> bytes:
    status = response.status
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "X-Content-Type-Options: nosniff",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append(f"Allow: {', '.join(METHODS)}")
    head = "".join(f"{line}\r\n" for line in lines) + "\r\n"
    return head.encode() + (response.body if with_body else b"")


# ── exposition ────────────────────────────────────────────────────────────────────────────────
# Samples as text for Prometheus. `prometheus_client` (extra ``metrics``) is imported here alone, when it is asked
# for.

STANDARD = "process_"
"""Beginning of the names that `prometheus_client` reads from /proc itself."""


class Exposition:
    """
    Text of all metrics of one process.

    Args:
        labels: ``role`` and ``node`` of the process, at every sample.
        samples: Called for each text.

    Raises:
        ConfigError: `prometheus_client` is not installed.
    """

    def __init__(self, labels: Mapping[str, str], samples: Callable[[], Iterable[Sample]]) -> None:
        self._client = require_client()
        self._labels = dict(labels)
        self._samples = samples
        self._process = self._client.ProcessCollector(registry=None)
        self._build_info = Sample("asyncrl_build_info", 1, {"version": VERSION, "python": platform.python_version()})

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """The text and its content type, in the format that ``accept``, a request's header, asks for."""
        encode, content_type = self._client.exposition.choose_encoder(accept)
        return encode(self), content_type

    def collect(self) -> Iterator[Any]:
        """Families of samples, as a registry of `prometheus_client` gives them."""
        for family in self._process.collect():
            for i, sample in enumerate(family.samples):
                family.samples[i] = sample._replace(labels=self._labels | sample.labels)
            yield family
        found: dict[str, list[Sample]] = {}
        for sample in (self._build_info, *self._samples()):
            found.setdefault(_checked(sample).name, []).append(sample)
        for name, samples in found.items():
            yield self._family(METRICS[name], samples)

    def _family(self, metric: Metric, samples: Iterable[Sample]) -> Any:
        kinds = self._client.metrics_core
        kind = kinds.CounterMetricFamily if metric.kind == "counter" else kinds.GaugeMetricFamily
        family = kind(metric.name, metric.meaning, labels=[*self._labels, *metric.labels])
        for sample in samples:
            family.add_metric(
                [*self._labels.values(), *(sample.labels[label] for label in metric.labels)], sample.value
            )
        return family


def require_client() -> Any:
    """The module `prometheus_client`; raises `ConfigError` unless it is installed."""
    try:
        import prometheus_client  # noqa: PLC0415  an extra
    except ImportError as error:
        raise ConfigError("--metrics needs prometheus_client: pip install 'asyncrl[metrics]'") from error
    return prometheus_client


def _checked(sample: Sample) -> Sample:
    """Raise `BrokenInvariant` for what the table does not have: nobody would find it in the documentation."""
    metric = METRICS.get(sample.name)
    if metric is None or metric.name.startswith(STANDARD):
        raise BrokenInvariant(f"{sample.name} is not in the table of metrics")
    if sample.labels.keys() != metric.labels.keys() or any(
        allowed and sample.labels[label] not in allowed for label, allowed in metric.labels.items()
    ):
        raise BrokenInvariant(f"{sample.name} has labels {dict(sample.labels)}, the table {dict(metric.labels)}")
    return sample


# ── loop lag ──────────────────────────────────────────────────────────────────────────────────
# Delay of an event loop: how much later than asked a sleep ends.

WINDOW_S = 15.0
"""Time for which a delay is remembered: one scrape interval, by Prometheus' usual setting."""
INTERVAL_S = 0.5


class LoopLag:
    """The longest delay of the last `WINDOW_S` seconds."""

    def __init__(self) -> None:
        self._delays: deque[tuple[float, float]] = deque()
        """Times and delays; each delay is shorter than those before it."""
        self._due_s: float | None = None

    def awaits(self, due_s: float) -> None:
        """Note that the loop is to wake up at ``due_s``."""
        self._due_s = due_s

    def woke(self, now_s: float) -> None:
        """Note that the loop woke up at ``now_s``, however late."""
        delay_s = max(now_s - (now_s if self._due_s is None else self._due_s), 0.0)
        while self._delays and self._delays[-1][1] <= delay_s:
            self._delays.pop()
        self._delays.append((now_s, delay_s))
        self._due_s = None

    def forget(self) -> None:
        """Forget all delays so far."""
        self._delays.clear()
        self._due_s = None

    def longest_s(self, now_s: float) -> float:
        """The longest delay, that of a wake-up which is overdue included."""
        while self._delays and self._delays[0][0] < now_s - WINDOW_S:
            self._delays.popleft()
        overdue_s = 0.0 if self._due_s is None else now_s - self._due_s
        return max(overdue_s, self._delays[0][1] if self._delays else 0.0)


async def watch(
    lag: LoopLag,
    clock: Callable[[], float],
    *,
    is_starting: Callable[[], bool],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """
    Measure the loop that runs this, every `INTERVAL_S` seconds, until cancelled.

    Delays of a process that ``is_starting`` do not count: its imports block the loop for many seconds.
    """
    while True:
        if not is_starting():
            lag.awaits(clock() + INTERVAL_S)
        await sleep(INTERVAL_S)
        if is_starting():
            lag.forget()
        else:
            lag.woke(clock())
