"""
Serves an ASGI application with uvicorn (extras ``agents`` and ``dashboard``), in the running event loop.

uvicorn is imported here alone. It takes no signals, which are the process's, and logs no requests, whose paths may hold
capabilities.
"""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.wire.addresses import bracketed, host_of, ip_of, port_of

# ── asgi ──────────────────────────────────────────────────────────────────────────────────────
# Types of ASGI 3, the interface between a web server and its applications.

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]
SHOWN_BYTES = 80


async def lifespan(receive: Receive, send: Send) -> None:
    """Answer the messages about start and shutdown, for an application that needs neither."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def start_of(body: bytes | bytearray) -> str:
    """The first characters of a body, quoted, for a message."""
    return repr(bytes(body[:SHOWN_BYTES]).decode("utf-8", "replace"))


# ── server ────────────────────────────────────────────────────────────────────────────────────

START_S = 10.0
STOP_S = 2
"""Seconds for open connections to end."""
CONNECTIONS = 4096
"""Connections beyond which a request is answered 503."""
HEAD_BYTES = 16 << 10
"""Largest head of a request, unless a single read has all of it."""
IDLE_S = 75
"""Seconds for which an idle connection stays open: longer than a tool call, so that clients need not connect again."""
BACKLOG = 1024


class AddressTaken(ConfigError):
    """Nothing can listen at the address: another process does, or it is none of this machine."""


@asynccontextmanager
async def serve(app: App, address: str, *, setting: str, needed_by: str, extra: str) -> AsyncIterator[str]:
    """
    Serve an application until the block ends.

    Args:
        address: ``tcp://HOST:PORT``; port 0 takes a free one.
        setting: Key or option that holds the address, for messages.
        needed_by: What needs the server, and ``extra`` the extra that installs it, for a machine without uvicorn.

    Yields:
        The URL, ``http://HOST:PORT``.

    Raises:
        ConfigError: uvicorn is not installed.
        AddressTaken: The address cannot be bound.
    """
    try:
        import uvicorn  # noqa: PLC0415  an extra
    except ImportError as error:
        raise ConfigError(f"{needed_by} needs uvicorn: pip install 'asyncrl[{extra}]'") from error

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    listener = _listen(address, setting)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        http="h11",  # httptools needs a third of its time and, in uvicorn, puts no bound on the head of a request
        lifespan="off",
        ws="none",
        server_header=False,
        date_header=False,
        h11_max_incomplete_event_size=HEAD_BYTES,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=STOP_S,
    )
    server = Server(config)
    serving = asyncio.create_task(server.serve([listener]), name=f"server of {setting}")
    try:
        async with asyncio.timeout(START_S):
            while not server.started:
                await asyncio.sleep(0.01)
                if serving.done():
                    serving.result()
        yield f"http://{bracketed(host_of(address))}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        with suppress(TimeoutError):
            await asyncio.wait_for(serving, 2 * STOP_S)
        listener.close()


def without_proxy(host: str) -> dict[str, str]:
    """Variables of a process that asks a server on ``host`` itself, whatever proxy it has for others."""
    return {name: ",".join(filter(None, (os.environ.get(name), host))) for name in ("no_proxy", "NO_PROXY")}


def _listen(address: str, setting: str) -> socket.socket:
    host = host_of(address)
    ip = ip_of(host)
    listener = socket.socket(socket.AF_INET6 if ip and ip.version == 6 else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port_of(address)))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressTaken(f"{setting}: port {port_of(address)} is in use; 0 takes a free one") from error
        raise AddressTaken(f"{setting} is {address!r}, where nothing can listen: {error}") from error
    return listener
