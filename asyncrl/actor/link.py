"""
Connections between actors: a `Link` is one end of a connection to one peer; many peers connect to a `Hub`.

    actor ── Link ═══════════ Hub ── broker or spool

There are two implementations with the same contract: `asyncrl.actor.memory` (one process: tests, co-located roles), and
`zmq_link` with `zmq_hub` in `asyncrl.actor.sockets` (DEALER to ROUTER). While both ends live, every message arrives
once, in the order sent. When an end restarts, the other end raises `LinkReset` or receives the first message of a new
session; the actors recover by idempotent ids in their messages.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from asyncrl.actor.message import Message
from asyncrl.actor.sockets.curve import Owner, RefusedKey


class Link(Protocol):
    """One end of a connection to one peer."""

    async def send(self, message: Message, /) -> None:
        """
        Send a message. Waits while too many bytes are unacknowledged: this is the backpressure.

        Raises:
            LinkClosed: The link was closed.
            LinkReset: The peer restarted; open a new link.
        """

    async def receive(self) -> Message:
        """
        Return the next message.

        Raises:
            LinkClosed: The link was closed, and everything received before was returned.
            LinkReset: The peer restarted; open a new link.
        """

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over `receive` until the link is closed."""

    async def aclose(self) -> None:
        """Close once everything sent has arrived, or after one second. Idempotent."""


class Hub(Protocol):
    """The end that many peers connect to. A peer's name is an opaque string, unique for each start of a node."""

    @property
    def address(self) -> str:
        """Address that peers connect to."""

    def send(self, peer: str, message: Message, /) -> None:
        """
        Queue a message for one peer. Never waits: credits bound the messages that a peer can be owed.

        A lost peer is no error here; missing heartbeats reveal it.
        """

    def owner(self, peer: str, /) -> Owner | None:
        """Holder of the key with which a peer proved who it is; None if it is trusted without one."""

    @property
    def refused_key(self) -> RefusedKey | None:
        """The last peer that was refused because nobody owns its key."""

    async def receive(self) -> tuple[str, Message]:
        """
        Return the next message, with its sender's name in front.

        Raises:
            LinkClosed: The hub was closed.
        """

    def forget(self, peer: str, /) -> None:
        """Drop a peer: its link raises `LinkReset`, now or at its next message."""

    async def aclose(self) -> None:
        """Close once everything sent has arrived, or after one second. Idempotent."""
