"""
Pictures of prompts in a node's memory, each fetched once from the broker's spool.

    fetch([a, b]) ─┬─▶ cached
                   └─▶ arriving: one request, however many callers ─▶ SHA-256 compared ─▶ cached, the newest 256 MiB

The cache outlives the links of a session: its pictures stay, and those that are arriving are requested again over the
next links.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from asyncrl.client.fetches import Payload
from asyncrl.client.spools import SpoolLinks
from asyncrl.errors import DecodeError
from asyncrl.messages.trajectory import Image

MAX_BYTES = 256 << 20
"""Size of the cache, about 2,500 pictures of 100 kB."""


class Arriving(Struct, frozen=True, eq=False):
    """Picture that was requested and has not arrived."""

    image: Image
    content: asyncio.Future[bytes]


class ImageCache:
    """
    Files of pictures by digest, for any number of concurrent callers of one event loop.

    Args:
        spools: Links over which to fetch, owned by the caller; None waits for `connect`.
        max_bytes: Size above which the least recently used pictures are evicted.
    """

    def __init__(self, spools: SpoolLinks | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.num_fetched = 0
        """Number of pictures that have arrived intact."""
        self._spools = spools
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._contents: dict[bytes, bytes] = {}
        """Files by digest, the most recently used last."""
        self._arriving: dict[bytes, Arriving] = {}

    def connect(self, spools: SpoolLinks) -> None:
        """Fetch over these links, and request again over them the pictures that are arriving."""
        self._spools = spools
        for arriving in self._arriving.values():
            self._request(spools, arriving.image)

    async def fetch(self, images: Sequence[Image], deadline_s: float) -> list[bytes]:
        """
        Files of pictures, in the order of ``images``.

        Raises:
            DecodeError: The broker has no such picture, or it arrived damaged.
            TimeoutError: One has not arrived within ``deadline_s``.
        """
        found = [self._content(image) for image in images]
        async with asyncio.timeout(deadline_s):
            # Shielded: other callers wait for the same picture.
            return [one if isinstance(one, bytes) else await asyncio.shield(one) for one in found]

    def _content(self, image: Image) -> bytes | asyncio.Future[bytes]:
        digest = image.digest
        if (content := self._contents.pop(digest, None)) is not None:
            self._contents[digest] = content
            return content
        if digest not in self._arriving:
            self._arriving[digest] = Arriving(image, asyncio.get_running_loop().create_future())
            if self._spools:
                self._request(self._spools, image)
        return self._arriving[digest].content

    def _request(self, spools: SpoolLinks, image: Image) -> None:
        spools.request(image, waits=True).add_done_callback(partial(self._arrived, image))

    def _arrived(self, image: Image, payload: Payload) -> None:
        if payload.cancelled() or (arriving := self._arriving.pop(image.digest, None)) is None:
            return
        found = payload.result()
        content = bytes(found or b"")
        if hashlib.sha256(content).digest() == image.digest:
            self.num_fetched += 1
            self._remember(image.digest, content)
            arriving.content.set_result(content)
            return
        cause = "arrived damaged" if content else "is not among those of the run's prompts"
        if found is None:
            cause = "is lost: the broker's spool was away for too long"
        arriving.content.set_exception(DecodeError(f"the picture {image.digest.hex()[:12]} {cause}"))
        arriving.content.exception()  # Retrieved here too: asyncio would warn if all callers have timed out.

    def _remember(self, digest: bytes, content: bytes) -> None:
        self._contents[digest] = content
        self._num_bytes += len(content)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._contents.pop(next(iter(self._contents))))
