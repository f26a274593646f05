"""
Base classes of everything that crosses a link.

A message is one row: its class, with who sends it to whom, its fields, and their bounds.

    @sent(by="trainer", to="broker")
    class Take(Message, frozen=True):
        step: int

        def out_of_bounds(self) -> str:
            return bounds.count("step", self.step)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from asyncrl.errors import DecodeError, LinkReset
from asyncrl.messages import bounds
from asyncrl.messages.words import Role


class Value(Struct, frozen=True, array_like=True, gc=False):
    """Base of parts of messages: a msgpack array of its fields."""


class Message(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of messages: a msgpack array whose first element is the class name. `sent` says who sends one to whom."""

    senders: ClassVar[Mapping[Role, frozenset[Role]]] = {}
    """Roles that may send it, by the role of the receiver. The broker and spools refuse it from all others."""
    shown_text: ClassVar[str] = ""
    """Field that has a text which people read; empty if none has."""

    def out_of_bounds(self) -> str:
        """Description of the first value that no sound node sends, such as ``step is -1``; empty if there is none."""
        return ""

    def forbidden_to(self, sender: Role) -> str:
        """Reason for which a role that may send such messages may not send this one; empty if it may."""
        return ""

    def as_shown(self) -> Self:
        """
        The same message, with each text that people read made fit to be shown, before anybody records it.

        So ledger, events and summary have nothing that a terminal would obey, whoever reads them later. Other texts are
        names, which have bounds, and paths, which are used.
        """
        text = self.shown_text
        return replace(self, **{text: bounds.shown(getattr(self, text))}) if text else self


Kind = TypeVar("Kind", bound=type[Message])


def sent(*, by: Role | Iterable[Role], to: Role | Iterable[Role], shown: str = "") -> Callable[[Kind], Kind]:
    """
    Say of a message which roles send it to which others: once for each direction in which it goes.

    ``shown`` is its field that has a text which people read.
    """

    def row(kind: Kind) -> Kind:
        kind.senders = {**kind.senders, **dict.fromkeys(_roles(to), _roles(by))}
        kind.shown_text = shown or kind.shown_text
        return kind

    return row


def _roles(roles: Role | Iterable[Role]) -> frozenset[Role]:
    return frozenset((roles,)) if isinstance(roles, str) else frozenset(roles)


# ── codec ─────────────────────────────────────────────────────────────────────────────────────
# Frames of a session: messages and acknowledgements as msgpack, for any set of messages.
#
#     small message ─▶ encode ─▶ [7, 3, message] ──────────────────────────────▶ decode ─▶ message
#     large message ─▶ encode ─▶ cut ─▶ [7, 3, Part] [8, 3, Part] ─▶ Assembly ─▶ decode ─▶ message

Body = TypeVar("Body")

PART_OVERHEAD_BYTES = 64
"""Most bytes of a frame with a `Part` that are not its data."""


class Part(Struct, frozen=True, array_like=True, tag=True):
    """A piece of a frame that is too large for the wire. Its parts follow each other, with no message between them."""

    num_bytes: int
    """Size of the whole frame."""
    data: memoryview


class Ack(Struct, frozen=True, array_like=True, tag=True):
    """An acknowledgement without a message."""


class Resend(Struct, frozen=True, array_like=True, tag=True):
    """Request to repeat every message after the acknowledged one."""


class Reset(Struct, frozen=True, array_like=True, tag=True):
    """The sender does not know this session."""


class Envelope(Struct, Generic[Body], frozen=True, array_like=True):
    """The content of one frame."""

    seq: int
    """1, 2, 3, ... for messages and parts; 0 for `Ack`, `Resend` and `Reset`."""
    ack: int
    """Every message and every part up to this sequence number has arrived."""
    body: Body
    signature: int = 0
    """Identifies one lifetime of the sending end; 0 is unsigned."""


Frame = Envelope[Message | Part | Ack | Resend | Reset]

_encoder = msgspec.msgpack.Encoder()


def encode(frame: Frame) -> bytes:
    """The bytes of one frame."""
    return _encoder.encode(frame)


def message_bytes(frame: Frame, num_bytes: int) -> int:
    """Size of the message that a frame of ``num_bytes`` brings, by itself or as its last part."""
    return frame.body.num_bytes if isinstance(frame.body, Part) else num_bytes


def cut(frame: bytes, max_bytes: int) -> Iterator[Part]:
    """Cut an encoded frame into parts, each of which makes a frame of at most ``max_bytes``."""
    whole, part_bytes = memoryview(frame), max_bytes - PART_OVERHEAD_BYTES
    for start in range(0, len(whole), part_bytes):
        yield Part(len(whole), whole[start : start + part_bytes])


class Assembly:
    """
    Joins parts, of one frame at a time.

    The data are copied: a view would keep its received frame in memory, which for a tiny part is far larger.

    Args:
        max_bytes: Largest frame that may be joined.
    """

    def __init__(self, max_bytes: int) -> None:
        self.is_open = False
        """True between the first and the last part of a frame."""
        self._max_bytes = max_bytes
        self._data = bytearray()
        self._expected_bytes = 0

    def __len__(self) -> int:
        """Bytes of the unfinished frame; 0 if there is none."""
        return len(self._data)

    def add(self, part: Part) -> bytearray | None:
        """
        Add the next part. Returns the whole frame after its last part.

        Raises:
            LinkReset: The frame would be too large, or its parts do not fit together.
        """
        if part.num_bytes > self._max_bytes:
            raise LinkReset(f"the other end sends a message of {part.num_bytes} bytes; at most {self._max_bytes} fit")
        expected = self._expected_bytes if self.is_open else part.num_bytes
        if not part.data or part.num_bytes != expected or len(self._data) + len(part.data) > expected:
            raise LinkReset(
                f"the other end sends a part of {len(part.data)} bytes of a message of {part.num_bytes} bytes, after "
                f"{len(self._data)} bytes of one of {expected}: the two do not fit together"
            )
        self._expected_bytes = expected
        self._data += part.data
        self.is_open = len(self._data) < expected
        if self.is_open:
            return None
        whole, self._data = self._data, bytearray()
        return whole


RESET_FRAME = encode(Envelope(0, 0, Reset()))


class Codec:
    """
    Decoder for one vocabulary of messages.

    Args:
        messages: Union of `Message` classes.
    """

    def __init__(self, messages: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(
            Envelope[messages | Part | Ack | Resend | Reset]
        )

    def decode(self, data: bytes | bytearray | memoryview) -> Frame:
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
