"""
Pictures of prompts in a node's memory, each fetched once from the broker's spool.

    fetch([a, b]) ─┬─▶ here
                   └─▶ arriving: one request, however many callers ─▶ SHA-256 compared ─▶ here, the newest 256 MiB

It outlives the links of a session: pictures that are here stay, and what has not arrived is requested over the next.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from asyncrl.client.fetches import Payload
from asyncrl.client.spools import SpoolLinks
from asyncrl.errors import DecodeError
from asyncrl.messages import Image

MAX_BYTES = 256 << 20
"""Size of the cache: with 100 kB a picture, those of 2,500 prompts."""


class Arriving(Struct, frozen=True, eq=False):
    """A picture that was requested."""

    image: Image
    content: asyncio.Future[bytes]


class ImageCache:
    """
    Files of pictures by digest, for any number of concurrent callers of one event loop.

    Args:
        spools: Links over which to fetch, owned by the caller; None waits for `connect`.
        max_bytes: Size at which the picture that was used least recently is forgotten.
    """

    def __init__(self, spools: SpoolLinks | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.num_fetched = 0
        """Pictures that have arrived."""
        self._spools = spools
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._contents: dict[bytes, bytes] = {}
        """Files by digest, the one that was used last at the end."""
        self._arriving: dict[bytes, Arriving] = {}

    def connect(self, spools: SpoolLinks) -> None:
        """Fetch over these links from here on, also what was requested over earlier ones and has not arrived."""
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
        arriving.content.exception()  # nobody may be waiting any more

    def _remember(self, digest: bytes, content: bytes) -> None:
        self._contents[digest] = content
        self._num_bytes += len(content)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._contents.pop(next(iter(self._contents))))
