"""
How actors talk: a `Link` is one end of a connection to one peer, a `Hub` is the end many peers connect to.

    actor ── Link ═══════════ Hub ── broker or spool

Two implementations that actors cannot tell apart: `asyncrl.actor.memory` (one process: tests, co-located roles) and
`asyncrl.actor.zmq_link` (DEALER to ROUTER). Both promise, for as long as both ends live: every message arrives,
once, in the order sent. When an end restarts, the other one sees `LinkReset` or a fresh `Hello`, and what must
survive that is the actors' affair: their messages carry idempotent ids.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from asyncrl.messages import Message


class Link(Protocol):
    """One end of a connection to one peer."""

    async def send(self, message: Message, /) -> None:
        """
        Hand a message over. Waits while more than the allowed bytes are unacknowledged: this is the backpressure.

        Raises:
            LinkClosed: The link was closed.
            LinkReset: The peer restarted; open a new link.
        """

    async def receive(self) -> Message:
        """
        The next message.

        Raises:
            LinkClosed: The link was closed, and everything received before has been handed out.
            LinkReset: The peer restarted; open a new link.
        """

    def __aiter__(self) -> AsyncIterator[Message]:
        """`receive` until the link is closed."""

    async def aclose(self) -> None:
        """Close, once everything sent has arrived or a second has passed. Idempotent."""


class Hub(Protocol):
    """The end many peers connect to. Peers are named by an opaque string, unique per incarnation of a node."""

    @property
    def address(self) -> str:
        """What peers connect to."""

    def send(self, peer: str, message: Message, /) -> None:
        """
        Queue a message for one peer. Never waits: what a peer may be owed is bounded by its credits.

        A peer that is gone is not an error here; its silence is noticed by whoever counts beats.
        """

    async def receive(self) -> tuple[str, Message]:
        """
        The next message and who sent it.

        Raises:
            LinkClosed: The hub was closed.
        """

    def forget(self, peer: str, /) -> None:
        """Drop a peer: its link sees `LinkReset`, now or when it speaks again."""

    async def aclose(self) -> None:
        """Close, once everything sent has arrived or a second has passed. Idempotent."""
