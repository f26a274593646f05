"""
Serves the gateway's app with uvicorn (extra ``agents``), in the event loop of the rollout.

uvicorn is imported here alone. It takes no signals, which are the node's, and logs no requests, whose paths hold
capabilities.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from asyncrl.config.addresses import bracketed, host_of, ip_of, port_of
from asyncrl.errors import ConfigError
from asyncrl.rollout.gateway.app import GatewayApp
from asyncrl.rollout.gateway.gateway import Gateway

START_S = 10.0
STOP_S = 2
"""Seconds for open connections to end."""
CONNECTIONS = 4096
"""Connections beyond which a request is answered 503."""
IDLE_S = 75
"""Seconds for which an idle connection stays open: longer than a tool call, so that clients need not connect again."""
BACKLOG = 1024


@asynccontextmanager
async def serve(gateway: Gateway, address: str) -> AsyncIterator[str]:
    """
    Serve until the block ends, and set ``gateway.url``.

    Args:
        address: ``tcp://HOST:PORT`` (``environment.gateway``); port 0 takes a free one.

    Yields:
        The URL, ``http://HOST:PORT``.

    Raises:
        ConfigError: uvicorn is not installed, or the address cannot be bound.
    """
    try:
        import uvicorn  # noqa: PLC0415  an extra: only a run with agent programs needs it
    except ImportError as error:
        raise ConfigError("an agent program needs uvicorn: pip install 'asyncrl[agents]'") from error

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    listener = _listen(address)
    config = uvicorn.Config(
        GatewayApp(gateway),
        log_config=None,
        access_log=False,
        http="h11",  # httptools needs a third of its time and, in uvicorn, puts no bound on the head of a request
        lifespan="off",
        ws="none",
        server_header=False,
        date_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=STOP_S,
    )
    server = Server(config)
    serving = asyncio.create_task(server.serve([listener]), name="gateway")
    try:
        async with asyncio.timeout(START_S):
            while not server.started:
                await asyncio.sleep(0.01)
                if serving.done():
                    serving.result()
        gateway.url = f"http://{bracketed(host_of(address))}:{listener.getsockname()[1]}"
        yield gateway.url
    finally:
        server.should_exit = True
        with suppress(TimeoutError):
            await asyncio.wait_for(serving, 2 * STOP_S)
        listener.close()


def _listen(address: str) -> socket.socket:
    host = host_of(address)
    ip = ip_of(host)
    listener = socket.socket(socket.AF_INET6 if ip and ip.version == 6 else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port_of(address)))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"environment.gateway is {address!r}, where nothing can listen: {error}") from error
    return listener
