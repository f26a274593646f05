"""Link and Hub inside one process: for tests, and for roles that share a process. Messages pass by reference."""

from collections.abc import AsyncIterator

from asyncrl.actor.inbox import Inbox
from asyncrl.errors import LinkClosed, LinkReset
from asyncrl.messages import Message

UNBOUNDED = 1 << 62
"""Nothing is copied here, so there is nothing to bound."""


class MemoryLink:
    """One end; made by `MemoryHub.connect`."""

    def __init__(self, hub: "MemoryHub", peer: str) -> None:
        self._hub = hub
        self._peer = peer
        self.inbox: Inbox[Message] = Inbox(UNBOUNDED)
        self._closed = False

    async def send(self, message: Message, /) -> None:
        """Hand a message over."""
        if self._closed:
            raise LinkClosed("this link is closed")
        self._hub.deliver(self._peer, message)

    async def receive(self) -> Message:
        """The next message."""
        return await self.inbox.get()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """`receive` until the link is closed."""
        while True:
            try:
                message = await self.receive()
            except LinkClosed:
                return
            yield message

    async def aclose(self) -> None:
        """Close. Idempotent."""
        self._closed = True
        self.inbox.fail(LinkClosed("this link was closed"))


class MemoryHub:
    """
    The end many links connect to.

    Args:
        inbox: Where messages go; None makes one. A `ZmqHub` gives its own, to have local peers beside remote ones.
    """

    address = "memory"

    def __init__(self, inbox: "Inbox[tuple[str, Message]] | None" = None) -> None:
        self._inbox = inbox or Inbox[tuple[str, Message]](UNBOUNDED)
        self._links: dict[str, MemoryLink] = {}
        self._closed = False

    def connect(self, peer: str) -> MemoryLink:
        """A new link whose messages arrive here as coming from ``peer``."""
        link = self._links[peer] = MemoryLink(self, peer)
        return link

    def deliver(self, peer: str, message: Message) -> None:
        """What a link sends."""
        if self._closed:
            raise LinkClosed("the hub is closed")
        if peer not in self._links:
            raise LinkReset("the hub forgot this peer")
        self._inbox.put((peer, message), 0)

    def send(self, peer: str, message: Message, /) -> None:
        """Queue a message for one peer; a peer that is gone is no error."""
        if link := self._links.get(peer):
            link.inbox.put(message, 0)

    async def receive(self) -> tuple[str, Message]:
        """The next message and who sent it."""
        return await self._inbox.get()

    def forget(self, peer: str, /) -> None:
        """Drop a peer: its link sees `LinkReset`."""
        if link := self._links.pop(peer, None):
            link.inbox.fail(LinkReset("the hub forgot this peer"))

    async def aclose(self) -> None:
        """Close, and every link with it. Idempotent."""
        self._closed = True
        self._inbox.fail(LinkClosed("the hub was closed"))
        for link in self._links.values():
            link.inbox.fail(LinkClosed("the hub was closed"))
