"""
Messages between a node and its engine's workers: a Unix socket, four bytes of length and msgpack for each.

    node ── Transfer, StoreValue ─▶ worker
      ▲── StoreSet, StoreGet, Transferred, TransferFailed ──┘

The same messages that the broker's link carries, so that a worker's end of a transfer is an ordinary `Receiver`.
"""

import asyncio
import struct
from collections.abc import AsyncIterator

import msgspec
from msgspec import Struct

from asyncrl.config.sections import Weights
from asyncrl.messages import (
    Member,
    Message,
    StoreGet,
    StoreSet,
    StoreValue,
    Transfer,
    TransferFailed,
    Transferred,
)
from asyncrl.weights.contents.layout import TensorSpec

LENGTH = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Transfer | StoreValue | StoreSet | StoreGet | Transferred | TransferFailed)


class Invitation(Struct, frozen=True, kw_only=True):
    """What a worker must know to receive weights, as it travels in vLLM's RPC."""

    path: str
    """Of the node's socket."""
    member: Member
    """The node, as transfers name it."""
    specs: list[TensorSpec]
    """What will come."""
    weights: Weights


class Channel:
    """One end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, message: Message) -> None:
        """
        Hand a message to the other end.

        Raises:
            ConnectionError: It is gone.
        """
        self.post(message)
        await self._writer.drain()

    def post(self, message: Message) -> None:
        """The same without waiting for room in the socket's buffer: for what is small."""
        content = _encoder.encode(message)
        self._writer.write(LENGTH.pack(len(content)) + content)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """What the other end says, until it is gone."""
        try:
            while True:
                (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                yield _decoder.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._writer.close()
