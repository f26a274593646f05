"""
The trainer's side: puts versions into the spool, beside the training.

    staged version ─ copy ─▶ own buffers ─▶ delta from the version before ─▶ spool        every version
                                        └─▶ anchor ──────────────────────▶ spool        the first, and every K-th

The trainer's copies are read for as long as copying them takes; encoding has a thread and buffers of its own: two more
copies of the weights, in host memory, from the first upload on.
"""

import asyncio
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from asyncrl.errors import LinkError, TransferError
from asyncrl.log import get_logger
from asyncrl.messages.weights import PutWeights, PutWeightsDone, StoredWeights, Uploaded
from asyncrl.weights.contents.header import Checksum
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.exchange import Copies
from asyncrl.weights.staging import Staging
from asyncrl.weights.stored.staged import digest
from asyncrl.weights.stored.stream import FORMAT, write
from asyncrl.wire.link import Link, receive_answer

log = get_logger()
Result = TypeVar("Result")

IN_FLIGHT = 4
"""Parts sent and not yet stored."""


class Uploader:
    """
    Uploads staged versions, one at a time.

    Args:
        copies: Where versions are staged.
        anchor_every: Versions from one anchor to the next.
        connect: Opens a link to the spool that carries nothing but weights.
    """

    def __init__(
        self,
        layout: Layout,
        copies: Copies,
        anchor_every: int,
        connect: Callable[[], Link],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layout = layout
        self._copies = copies
        self._anchor_every = anchor_every
        self._connect = connect
        self._clock = clock
        self._checksum = Checksum(torch.device("cpu"))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weights-upload")
        self._link: Link | None = None
        self._base: tuple[StoredWeights, Staging] | None = None
        """The last version that was stored, and its contents."""
        self._spare: Staging | None = None
        """Buffers that hold nothing of use."""
        self._since_anchor = 0
        """Deltas stored since the last anchor."""

    async def upload(self, policy_version: int) -> Uploaded:
        """
        Store a version as a delta from the last one that was stored; the first as an anchor.

        The returned ``problem`` names what kept it from the spool's disk: it is not staged any more, the spool did not
        answer, or could not store it.
        """
        started_s = self._clock()
        num_bytes, problem = 0, ""
        try:
            new, weights = await self._in_thread(self._copy, policy_version)
            num_bytes = await self._put(weights, new, self._base[1] if self._base else None)
            self._spare = self._base[1] if self._base else None
            self._base = weights, new
            self._since_anchor = 0 if weights.is_anchor else self._since_anchor + 1
        except (TransferError, LinkError) as error:
            problem = str(error)
        return Uploaded(policy_version, self._clock() - started_s, num_bytes, problem)

    async def upload_anchor(self) -> None:
        """Store the last version once more, as an anchor, if one is due. If that fails, the next version gets one."""
        if self._base is None or self._since_anchor < self._anchor_every:
            return
        weights, contents = self._base
        anchor = StoredWeights(weights.policy_version, weights.layout_hash, weights.digest, FORMAT)
        try:
            await self._put(anchor, contents, None)
            self._since_anchor = 0
        except (TransferError, LinkError) as error:
            log.warning("weights.anchor_failed", policy_version=weights.policy_version, cause=str(error))

    async def aclose(self) -> None:
        """Close the link and the thread. Idempotent."""
        await self._disconnect()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _copy(self, policy_version: int) -> tuple[Staging, StoredWeights]:
        """Copy a staged version to buffers of this object; on its thread."""
        new = self._spare = self._spare or Staging(self._layout)
        with self._copies.read(policy_version) as staged:
            if staged is None:
                raise TransferError(f"version {policy_version} is not staged any more")
            for target, bucket in zip(new.buckets, staged.buckets, strict=True):
                target.copy_(bucket)
        base = self._base[0] if self._base else None
        return new, StoredWeights(
            policy_version,
            self._layout.hash,
            digest(new, self._checksum),
            FORMAT,
            base_version=base.policy_version if base else -1,
            base_digest=base.digest if base else "",
        )

    async def _put(self, weights: StoredWeights, new: Staging, base: Staging | None) -> int:
        """Encode and send a file part by part. Returns its size in bytes once it is on disk."""
        parts = write(new, base)
        part, number, num_bytes = await self._in_thread(next, parts, None), 0, 0
        try:
            link = self._link = self._link or self._connect()
            while part is not None:
                following = await self._in_thread(next, parts, None)
                payload, crc32 = memoryview(part), zlib.crc32(part)
                await link.send(PutWeights(weights, number, crc32, payload, is_last=following is None))
                number, num_bytes = number + 1, num_bytes + len(part)
                if number >= IN_FLIGHT:
                    await _answered(link)
                part = following
            for _ in range(min(number, IN_FLIGHT - 1)):
                await _answered(link)
        except (TransferError, LinkError):
            await self._disconnect()  # with the answers that are still to come
            raise
        return num_bytes

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()


async def _answered(link: Link) -> None:
    """Wait for the answer to one part. Raises `TransferError` if it cannot be stored, `LinkError` if none comes."""
    answer = await receive_answer(link, PutWeightsDone)
    if answer.problem:
        raise TransferError(answer.problem)
