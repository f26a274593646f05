"""asyncrl/rollout/engines/vllm/channel.py"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from asyncrl.actor.message import Message
from asyncrl.messages.session import StoreGet, StoreSet, StoreValue
from asyncrl.messages.weights import Abort, Member, Transfer
from asyncrl.rollout.engines.vllm.channel import Channel

MESSAGES: list[Message] = [
    Transfer(3, 7, [Member("trainer-0", "t"), Member("rollout-0", "r", 2)], True, 30.0),
    StoreValue("3", "rank/0", b"\x00\xff" * 100_000),
    StoreSet("3", "rank/1", b""),
    StoreGet("3", "rank/0"),
    Abort(3, "rollout-1 was silent"),
]


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[Channel, Channel]]:
    """Both ends of one socket."""
    arrived: asyncio.Queue[Channel] = asyncio.Queue()
    path = str(folder / "socket")
    server = await asyncio.start_unix_server(lambda *ends: arrived.put_nowait(Channel(*ends)), path)
    near = Channel(*await asyncio.open_unix_connection(path))
    far = await arrived.get()
    server.close()
    yield near, far
    near.close()
    far.close()
    await asyncio.sleep(0)  # Sockets are closed in the next turn.


def test_messages_arrive_unchanged_and_end_when_the_other_end_disconnects(tmp_path):
    async def play() -> list[Message]:
        async with pair(tmp_path) as (near, far):
            for message in MESSAGES:
                await near.send(message)
            near.close()
            return [message async for message in far]

    assert asyncio.run(play()) == MESSAGES


def test_a_truncated_message_ends_the_channel(tmp_path):
    async def play() -> list[Message]:
        async with pair(tmp_path) as (near, far):
            near.post(MESSAGES[2])
            near._writer.write(b"\x10\x00\x00\x00half")
            near.close()
            return [message async for message in far]

    assert asyncio.run(play()) == [MESSAGES[2]]


def test_sending_to_a_disconnected_end_is_a_connection_error(tmp_path):
    async def play() -> None:
        async with pair(tmp_path) as (near, far):
            far.close()
            with pytest.raises(ConnectionError):
                await asyncio.gather(*(near.send(MESSAGES[1]) for _ in range(100)))

    asyncio.run(play())
