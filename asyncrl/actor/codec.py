"""Frames of a session: messages and acknowledgements as msgpack, for any set of messages."""

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from asyncrl.actor.message import Message
from asyncrl.errors import DecodeError

Body = TypeVar("Body")


class Ack(Struct, frozen=True, array_like=True, tag=True):
    """An acknowledgement without a message."""


class Resend(Struct, frozen=True, array_like=True, tag=True):
    """Request to repeat every message after the acknowledged one."""


class Reset(Struct, frozen=True, array_like=True, tag=True):
    """The sender does not know this session."""


class Envelope(Struct, Generic[Body], frozen=True, array_like=True):
    """The content of one frame."""

    seq: int
    """1, 2, 3, ... for messages; 0 for `Ack`, `Resend` and `Reset`."""
    ack: int
    """Every message up to this sequence number has arrived."""
    body: Body
    signature: int = 0
    """Identifies one lifetime of the sending end; 0 is unsigned."""


Frame = Envelope[Message | Ack | Resend | Reset]

_encoder = msgspec.msgpack.Encoder()


def encode(frame: Frame) -> bytes:
    """The bytes of one frame."""
    return _encoder.encode(frame)


RESET_FRAME = encode(Envelope(0, 0, Reset()))


class Codec:
    """
    Decoder for one vocabulary of messages.

    Args:
        messages: Union of `Message` classes.
    """

    def __init__(self, messages: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(
            Envelope[messages | Ack | Resend | Reset]
        )

    def decode(self, data: bytes | memoryview) -> Frame:
        """
        Read one frame. Binary fields stay views into ``data``.

        Raises:
            DecodeError: The bytes are not a frame with one of these messages.
        """
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            # msgspec raises the last two for bad UTF-8 and for deep nesting: one hostile frame must not end the loop.
            raise DecodeError(f"not a message: {error}") from error
