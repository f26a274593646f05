"""Serves the gateway's app, in the event loop of the rollout."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncrl.rollout.gateway.app import GatewayApp
from asyncrl.rollout.gateway.gateway import Gateway
from asyncrl.web import server


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
    app, setting = GatewayApp(gateway), "environment.gateway"
    async with server.serve(app, address, setting=setting, needed_by="an agent program", extra="agents") as url:
        gateway.url = url
        yield url
