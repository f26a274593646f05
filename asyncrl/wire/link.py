"""
Connections between actors: a `Link` is one end of a connection to one peer; many peers connect to a `Hub`.

    actor ── Link ═══════════ Hub ── broker or spool

There are two implementations with the same contract: `asyncrl.wire.memory` (one process: tests, co-located roles), and
`zmq_link` with `zmq_hub` (DEALER to ROUTER). While both ends live, every message arrives
once, in the order sent. When an end restarts, the other end raises `LinkReset` or receives the first message of a new
session; the actors recover by idempotent ids in their messages.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from typing import Generic, Protocol, TypeVar

from asyncrl.errors import LinkClosed, LinkError
from asyncrl.messages.codec import Message
from asyncrl.wire.curve import Owner, RefusedKey


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

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over `receive` until the link is closed."""
        while True:
            try:
                message = await self.receive()
            except LinkClosed:
                return
            yield message

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


# ── answer ────────────────────────────────────────────────────────────────────────────────────
# Answers to requests over a link on which each request gets one, in order.

Answer = TypeVar("Answer", bound=Message)

ANSWER_S = 60.0
"""Seconds in which a spool answers, unless it has much to read for it; the link is opened again after that."""


async def receive_answer(link: Link, kind: type[Answer], deadline_s: float | None = None) -> Answer:
    """The next message, which must be of this kind; raises `LinkError` if none comes in time (`ANSWER_S`)."""
    limit_s = ANSWER_S if deadline_s is None else deadline_s
    try:
        async with asyncio.timeout(limit_s):
            message = await link.receive()
    except TimeoutError:
        raise LinkError(f"the spool did not answer within {limit_s:g} s") from None
    if not isinstance(message, kind):
        raise LinkError(f"the spool answered with {type(message).__name__}, expected {kind.__name__}")
    return message


# ── inbox ─────────────────────────────────────────────────────────────────────────────────────
# Received bytes, bounded: messages that wait for their actor, and messages that have arrived in part.

T = TypeVar("T")

ITEM_OVERHEAD_BYTES = 512
"""Added to the size of each item: a decoded message takes far more memory than its few bytes on the wire."""
TURN_S = 0.001
"""Longest time a consumer runs without yielding: one that always finds a message would otherwise block the loop."""


class Inbox(Generic[T]):
    """
    A queue with one consumer. After `fail`, queued items are returned first, then the error is raised.

    Args:
        max_bytes: `is_full` is True from this size on; the owner of the socket then stops reading it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._error: LinkError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._turn_ends_s = 0.0

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._max_bytes

    def put(self, item: T, num_bytes: int) -> None:
        self._items.append((item, num_bytes + ITEM_OVERHEAD_BYTES))
        self._bytes += num_bytes + ITEM_OVERHEAD_BYTES
        self._wake()

    def fail(self, error: LinkError) -> None:
        """End the queue with ``error``; the first error stays."""
        self._error = self._error or error
        self._wake()

    async def get(self) -> T:
        """
        Return the next item.

        Raises:
            LinkError: The error given to `fail`, once the queue is empty.
        """
        loop = asyncio.get_running_loop()
        if self._items and loop.time() >= self._turn_ends_s:
            await asyncio.sleep(0)
            self._turn_ends_s = loop.time() + TURN_S
        while not self._items:
            if self._error is not None:
                raise self._error
            self._waiter = loop.create_future()
            await self._waiter
            self._turn_ends_s = loop.time() + TURN_S
        item, num_bytes = self._items.popleft()
        self._bytes -= num_bytes
        return item

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class PartialMessages:
    """
    Bytes of messages that have arrived in part, by peer, bounded for all peers together.

    Beyond the bound the peer that has been silent for longest gives way, so that messages nobody finishes cannot keep
    out others.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes: dict[str, int] = {}
        """Bytes by peer; the one that has been silent for longest is the first."""
        self._sum = 0

    def note(self, peer: str, num_bytes: int) -> list[str]:
        """Set the bytes of a peer that has just sent a part. Returns the peers to drop, which count no more."""
        self._sum += num_bytes - self._bytes.pop(peer, 0)
        if num_bytes:
            self._bytes[peer] = num_bytes
        dropped = []
        while self._sum > self._max_bytes:
            silent = next(iter(self._bytes))
            self._sum -= self._bytes.pop(silent)
            dropped.append(silent)
        return dropped


# ── waiting ───────────────────────────────────────────────────────────────────────────────────
# Wait for one thing, unless another comes first.

Result = TypeVar("Result")


class OtherCameFirst(Exception):
    """Outcome of `unless`: what was awaited has been cancelled."""


async def unless(other: Awaitable[object], waiting: Awaitable[Result]) -> Result:
    """
    Await ``waiting``; cancels it, and raises `OtherCameFirst`, as soon as ``other`` is done. Both end here.

    An error of either is raised as it is.
    """
    tasks = asyncio.ensure_future(waiting), asyncio.ensure_future(other)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            tasks[1].result()
            raise OtherCameFirst
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
