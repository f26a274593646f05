"""Link and Hub inside one process, for tests and co-located roles. Messages are passed by reference."""

from asyncrl.errors import LinkClosed, LinkReset
from asyncrl.messages.codec import Message
from asyncrl.wire.curve import Owner, RefusedKey
from asyncrl.wire.link import Inbox, Link

UNBOUNDED = 1 << 62
"""Messages are not copied, so inboxes need no bound."""


class MemoryLink(Link):
    """A `Link` made by `MemoryHub.connect`."""

    def __init__(self, hub: "MemoryHub", peer: str) -> None:
        self._hub = hub
        self._peer = peer
        self.inbox: Inbox[Message] = Inbox(UNBOUNDED)
        self._closed = False

    async def send(self, message: Message, /) -> None:
        if self._closed:
            raise LinkClosed("this link is closed")
        self._hub.deliver(self._peer, message)

    async def receive(self) -> Message:
        return await self.inbox.get()

    async def aclose(self) -> None:
        self._closed = True
        self.inbox.fail(LinkClosed("this link was closed"))


class MemoryHub:
    """
    A `Hub` for links in the same process.

    Args:
        inbox: Queue for received messages; None makes one. A `ZmqHub` passes its own and so has local and remote peers.
    """

    address = "memory"
    refused_key: RefusedKey | None = None

    def __init__(self, inbox: "Inbox[tuple[str, Message]] | None" = None) -> None:
        self._inbox = inbox or Inbox[tuple[str, Message]](UNBOUNDED)
        self._links: dict[str, MemoryLink] = {}
        self._closed = False

    def connect(self, peer: str) -> MemoryLink:
        """A new link, whose messages arrive at this hub under the name ``peer``."""
        link = self._links[peer] = MemoryLink(self, peer)
        return link

    def deliver(self, peer: str, message: Message) -> None:
        """
        Queue a message that a link sends.

        Raises:
            LinkClosed: The hub is closed.
            LinkReset: The hub dropped this peer.
        """
        if self._closed:
            raise LinkClosed("the hub is closed")
        if peer not in self._links:
            raise LinkReset("the hub forgot this peer")
        self._inbox.put((peer, message), 0)

    def send(self, peer: str, message: Message, /) -> None:
        if link := self._links.get(peer):
            link.inbox.put(message, 0)

    def owner(self, _peer: str) -> Owner | None:
        return None

    async def receive(self) -> tuple[str, Message]:
        return await self._inbox.get()

    def forget(self, peer: str, /) -> None:
        if link := self._links.pop(peer, None):
            link.inbox.fail(LinkReset("the hub forgot this peer"))

    async def aclose(self) -> None:
        """Close the hub and every link to it. Idempotent."""
        self._closed = True
        self._inbox.fail(LinkClosed("the hub was closed"))
        for link in self._links.values():
            link.inbox.fail(LinkClosed("the hub was closed"))
