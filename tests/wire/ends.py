"""Hubs and links of a test, and peers that are none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from asyncrl.messages.codec import Ack, Envelope, Part, Reset, encode
from asyncrl.messages.rollout import Offer
from asyncrl.messages.wire import CODEC
from asyncrl.wire.curve import hub_keys_of, link_keys_of
from asyncrl.wire.session import Limits
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.wire.zmq_link import ZmqLink

ANY_PORT = "tcp://127.0.0.1:0"
ANY_SOCKET = "ipc://*"
"""Unix socket of the test's user: peers need no secret."""
SECRET = bytes(range(32))
DEADLINE_S = 60.0


@asynccontextmanager
async def hub_at(address: str = ANY_PORT, *, limits: Limits = Limits()) -> AsyncIterator[ZmqHub]:  # noqa: B008  immutable
    hub = ZmqHub(address, CODEC, keys=hub_keys_of(SECRET), limits=limits)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield hub
    finally:
        await hub.aclose()


@asynccontextmanager
async def link_to(address: str, identity: str, *, limits: Limits = Limits()) -> AsyncIterator[ZmqLink]:  # noqa: B008  immutable
    link = ZmqLink(address, identity, CODEC, keys=link_keys_of(SECRET), limits=limits)
    try:
        yield link
    finally:
        await link.aclose()


def frame(seq: int, ack: int, body: object) -> bytes:
    return encode(Envelope(seq, ack, body))  # type: ignore[arg-type]


async def hear_out(link: ZmqLink) -> None:
    async for _ in link:
        pass


HOSTILE = [
    [b""],
    [b"not one of ours"],
    [b"two", b"frames"],
    [b"\x91" * 100_000],
    [b"\xdd\xff\xff\xff\xff"],
    [b"\x93\x01\x00\xc6\xff\xff\xff\xff"],
    [msgspec.msgpack.encode([1, 0, ["Unheard"]])],
    [frame(0, 0, Ack())],
    [frame(0, 0, Reset())],
    [frame(7, 0, Offer(1))],
    [frame(1, 9, Offer(1))],
    [frame(-1, -1, Offer(1))],
    [frame(1, 0, Part(1 << 62, memoryview(b"x")))],
    [frame(7, 0, Part(10, memoryview(b"x")))],
    [frame(0, 0, Part(10, memoryview(b"x")))],
]
"""Messages of peers that are none of ours, in frames."""
