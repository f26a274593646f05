"""Serves a dashboard at an address, until it is told to stop."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from asyncrl.config.addresses import is_loopback, tcp
from asyncrl.errors import ConfigError
from asyncrl.observe.dashboard.app import DashboardApp
from asyncrl.web import server

PORT = 8460
"""Port that is tried first, so that the address can be kept open in a browser."""
MIN_TOKEN = 16
"""Fewest characters of a token."""


@asynccontextmanager
async def serve(
    runs: Sequence[Path], *, host: str = "127.0.0.1", port: int | None = None, token: str = ""
) -> AsyncIterator[str]:
    """
    Serve until the block ends.

    Args:
        port: None takes `PORT`, or a free one if that is taken; 0 takes a free one.
        token: Every request must carry it; empty: none, and ``host`` must be loopback.

    Yields:
        The URL to open, with the token.

    Raises:
        ConfigError: A run does not exist, the address cannot be bound or needs a token, or uvicorn is not installed.
    """
    if not token and not is_loopback(tcp(host, 0)):
        raise ConfigError(
            f"--host is {host}, which other machines can reach: expected 127.0.0.1 (and an ssh tunnel), or a token of "
            f"at least {MIN_TOKEN} characters in ASYNCRL_DASHBOARD_TOKEN"
        )
    if token and len(token) < MIN_TOKEN:
        raise ConfigError(f"the dashboard's token has {len(token)} characters, expected at least {MIN_TOKEN}")
    app = DashboardApp(runs, token=token)
    ports = [PORT, 0] if port is None else [port]
    async with AsyncExitStack() as stack:
        url = await _first_free(stack, app, host, ports)
        stack.callback(app.close)
        yield f"{url}/?token={quote(token)}" if token else f"{url}/"


async def _first_free(stack: AsyncExitStack, app: DashboardApp, host: str, ports: Sequence[int]) -> str:
    """Serve at the first port where that is possible; the URL."""
    for port in ports[:-1]:
        with suppress(server.AddressTaken):
            return await _enter(stack, app, host, port)
    return await _enter(stack, app, host, ports[-1])


async def _enter(stack: AsyncExitStack, app: DashboardApp, host: str, port: int) -> str:
    serving = server.serve(app, tcp(host, port), setting="--port", needed_by="the dashboard", extra="dashboard")
    return await stack.enter_async_context(serving)
