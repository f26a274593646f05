"""A broker on a real socket that gives scripted answers to an operator's command."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from asyncrl.messages.codec import Message
from asyncrl.messages.session import Beat, Hello, Welcome
from asyncrl.messages.spool import SpoolSet
from asyncrl.messages.wire import CODEC
from asyncrl.wire.run_address import RunAddress
from asyncrl.wire.zmq_hub import ZmqHub

T = TypeVar("T")


async def with_broker(
    command: Callable[[RunAddress], Awaitable[T]],
    answers: Mapping[Any, Sequence[Message]],
    *,
    run_dir: Path | str = "/runs/x",
    key: Path | None = None,
) -> tuple[T, list[Message]]:
    """
    Run ``command`` against a broker that answers each kind of message with ``answers``.

    Returns the command's result, and the messages that the broker received, without beats.
    """
    hub = ZmqHub("ipc://*", CODEC)
    heard: list[Message] = []
    welcome = Welcome(broker_term=1, run_dir=str(run_dir), config=b"{}", spools=SpoolSet(), beat_s=60.0)

    async def broker() -> None:
        while True:
            peer, message = await hub.receive()
            if isinstance(message, Beat):
                continue
            heard.append(message)
            for answer in [welcome] if isinstance(message, Hello) else answers.get(type(message), ()):
                hub.send(peer, answer)

    serving = asyncio.create_task(broker())
    try:
        result = await command(RunAddress(hub.address, key))
    finally:
        serving.cancel()
        await hub.aclose()
    return result, heard
