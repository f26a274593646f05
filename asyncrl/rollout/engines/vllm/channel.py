"""
Messages between a node and its engine's workers, over a Unix socket: four bytes of length, then msgpack.

    node ── Transfer, Abort, StoreValue ─▶ worker
      ▲── StoreSet, StoreGet, Transferred, TransferFailed ──┘

The messages are those of the broker's link, so a worker receives with an ordinary `Receiver`.
"""

import asyncio
import struct
from collections.abc import AsyncIterator

import msgspec
from msgspec import Struct

from asyncrl.actor.message import Message
from asyncrl.config.sections.weights import Weights
from asyncrl.messages.session import StoreGet, StoreSet, StoreValue
from asyncrl.messages.weights import Abort, Member, Transfer, TransferFailed, Transferred
from asyncrl.weights.contents.layout import TensorSpec

LENGTH = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Transfer | Abort | StoreValue | StoreSet | StoreGet | Transferred | TransferFailed)


class ReceiverSetup(Struct, frozen=True, kw_only=True):
    """All a worker needs to receive weights. Sent as JSON through vLLM's RPC."""

    socket_path: str
    member: Member
    """The node, as `Transfer.members` names it."""
    specs: list[TensorSpec]
    weights: Weights
    interface: str
    """Address of this machine on which the worker connects to the trainer."""
    staging_path: str = ""
    """Memory of the node to receive into, see `asyncrl.weights.shared.shared_path`; empty takes the worker's own."""


class Channel:
    """One end of the socket. Iterating gives the other end's messages until it disconnects."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, message: Message) -> None:
        """Send a message. Raises `ConnectionError` if the other end has disconnected."""
        self.post(message)
        await self._writer.drain()

    def post(self, message: Message) -> None:
        """Send a small message without waiting for room in the socket's buffer."""
        content = _encoder.encode(message)
        self._writer.write(LENGTH.pack(len(content)) + content)

    async def __aiter__(self) -> AsyncIterator[Message]:
        try:
            while True:
                (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                yield _decoder.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    def close(self) -> None:
        """Disconnect. Idempotent."""
        self._writer.close()
