"""
A web server for a handful of small pages that are read by programs: GET and HEAD, one request a connection.

    connection ─▶ head, at most 8 KiB, within 5 s ─▶ page ─▶ response, within 5 s ─▶ closed

It runs in the event loop of the process, so that no answer comes from a process whose loop is blocked. It needs no
package, and serves what no stranger may see to loopback alone, unless the caller decides otherwise.
"""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import NamedTuple

from asyncrl.errors import ConfigError, LinkError
from asyncrl.log import get_logger

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


class Refused(Exception):
    """A request that is no request for a page."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@asynccontextmanager
async def serve(pages: Mapping[str, Page], host: str, port: int) -> AsyncIterator[int]:
    """
    Serve ``pages``, by path, until the block ends. Yields the port, which is any free one if ``port`` is 0.

    Raises:
        LinkError: Another process has the port, which it may leave.
        ConfigError: The address cannot be bound.
    """
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio calls this in a task"
        connections.add(task)
        try:
            # Only the end of the server cancels; asyncio would report a cancelled connection as an error.
            with suppress(asyncio.CancelledError):
                await _answer(pages, reader, writer, is_crowded=len(connections) > MAX_CONNECTIONS)
        finally:
            connections.discard(task)

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
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _answer(
    pages: Mapping[str, Page], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_crowded: bool
) -> None:
    with suppress(OSError, TimeoutError):  # The other side is gone, or too slow: there is nobody to tell.
        try:
            method, response = await _response(pages, reader, is_crowded=is_crowded)
            async with asyncio.timeout(DEADLINE_S):
                writer.write(_encoded(response, with_body=method != "HEAD"))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()  # Without effect once it is closed.


async def _response(
    pages: Mapping[str, Page], reader: asyncio.StreamReader, *, is_crowded: bool
) -> tuple[str, Response]:
    method = "GET"
    try:
        if is_crowded:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"more than {MAX_CONNECTIONS} connections")
        async with asyncio.timeout(DEADLINE_S):
            head = await reader.readuntil(b"\r\n\r\n")
        method, path, headers = parsed(head)
        if path not in pages:
            raise Refused(HTTPStatus.NOT_FOUND, f"no page {path!r}: expected one of {', '.join(pages)}")
        return method, pages[path](headers)
    except Refused as refused:
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
    """Method, path without its query, and headers of a request; raises `Refused`."""
    try:
        line, *fields = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
        method, target, version = line.split(" ")
    except ValueError:  # UnicodeDecodeError is one
        raise Refused(HTTPStatus.BAD_REQUEST, "the first line is no request: expected GET PATH HTTP/1.1") from None
    if version not in ("HTTP/1.0", "HTTP/1.1"):
        raise Refused(HTTPStatus.BAD_REQUEST, f"{version!r} is no version of HTTP that is spoken here")
    if method not in METHODS:
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"method {method!r}: expected {' or '.join(METHODS)}")
    if not target.startswith("/"):
        raise Refused(HTTPStatus.BAD_REQUEST, f"{target!r} is no path: expected one that begins with /")
    headers: dict[str, str] = {}
    for field in fields:
        name, colon, value = field.partition(":")
        if not colon or not name or name != name.strip():
            raise Refused(HTTPStatus.BAD_REQUEST, f"{field!r} is no header: expected NAME: VALUE")
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
