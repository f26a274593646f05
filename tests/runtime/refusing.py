"""A broker that welcomes a node which then fails to start."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from asyncrl.config.config import Config, to_json
from asyncrl.errors import ConfigError
from asyncrl.messages.codec import Message
from asyncrl.messages.files import ModelFiles
from asyncrl.messages.session import Bye, Hello, Welcome
from asyncrl.messages.spool import SpoolSet
from asyncrl.messages.wire import CODEC
from asyncrl.messages.words import Role
from asyncrl.wire.handshake import Identity, identity
from asyncrl.wire.run_address import RunAddress
from asyncrl.wire.zmq_hub import ZmqHub

Start = Callable[[RunAddress, Identity], Awaitable[None]]
"""Starts a node, given the broker's address and the node's identity."""


def refused(config: Config, role: Role, start: Start, models: Sequence[ModelFiles] = ()) -> tuple[str, str]:
    """The `ConfigError` that is raised, and the reason that the broker receives in the Bye."""
    received: list[Message] = []

    async def broker(hub: ZmqHub) -> None:
        while not any(isinstance(message, Bye) for message in received):
            peer, message = await hub.receive()
            received.append(message)
            if isinstance(message, Hello):
                hub.send(peer, Welcome(1, str(Path.cwd()), to_json(config), SpoolSet(), 0.5, models=list(models)))

    async def main() -> str:
        hub = ZmqHub("ipc://*", CODEC)
        answering = asyncio.create_task(broker(hub))
        try:
            with pytest.raises(ConfigError) as error:
                await start(RunAddress(hub.address), identity(role, f"{role}-0"))
            async with asyncio.timeout(10):
                await answering
        finally:
            answering.cancel()
            await hub.aclose()
        return str(error.value)

    error = asyncio.run(main())
    (bye,) = [message for message in received if isinstance(message, Bye)]
    return error, bye.reason
