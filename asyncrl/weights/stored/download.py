"""
A `WeightReceiver` that fetches versions from the spool, after it has chosen which stored file to read next.

    Transfer(v) ─▶ ListWeights ─▶ next file ─▶ parts, `IN_FLIGHT` requested at a time ─▶ staging ─▶ ... ─▶ v

Decoding continues meanwhile; parts are decoded in a thread. A link that is lost is opened again, and the file goes on
at the part that is missing. Whatever does not fit (a gap, a wrong digest) starts again from the anchor: a version is
complete and equal to the trainer's, or it is not handed to the engine.
"""

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from torch import Tensor

from asyncrl.errors import LinkError, TransferError
from asyncrl.log import get_logger
from asyncrl.messages.session import StoreValue
from asyncrl.messages.weights import (
    Abort,
    FetchedWeights,
    FetchWeights,
    ListWeights,
    StoredWeights,
    Transfer,
    WeightsFile,
    WeightsList,
)
from asyncrl.weights.stored.staged import StagedVersion
from asyncrl.wire.link import Link, receive_answer

# ── chain ─────────────────────────────────────────────────────────────────────────────────────
# Choice of the stored file that a rollout reads next.
#
#     anchor 20 ─▶ delta 21 ─▶ delta 22 ─▶ delta 23        held 22: delta 23        held nothing, or 7: the anchor
#
# Versions are compared by digest. After a restart of the trainer a number may stand for other weights than before,
# and a delta must meet the base that it was made from.


def next_file(
    files: Sequence[WeightsFile], policy_version: int, held: str, unfinished: StoredWeights | None = None
) -> WeightsFile | None:
    """
    The next file to read on the way to ``policy_version``; None if that version is held.

    Args:
        files: Oldest first.
        held: Digest of the complete version held; empty if there is none.
        unfinished: File that was read in part.

    Raises:
        TransferError: No stored files lead to the version.
    """
    leading = _leading(files, policy_version)
    target = leading[0].digest if leading else ""
    if target and held == target:
        return None
    deltas = [weights for weights in leading if weights.base_digest == held and not weights.is_anchor]
    anchors = [weights for weights in leading if weights.is_anchor]
    chosen = [weights for weights in leading if weights == unfinished] or deltas or anchors
    if not chosen:
        raise TransferError(f"the spool has no files that lead to version {policy_version}")
    return next(file for file in files if file.weights == chosen[0])


def _leading(files: Sequence[WeightsFile], policy_version: int) -> list[StoredWeights]:
    """Files on the way to a version: those that end at it, newest first, then those that end at their bases, ..."""
    newest_first = [file.weights for file in reversed(files)]
    targets = [weights.digest for weights in newest_first if weights.policy_version == policy_version][:1]
    leading: list[StoredWeights] = []
    while targets:
        found = [weights for weights in newest_first if weights.digest in targets and weights not in leading]
        leading += found
        targets = [weights.base_digest for weights in found if not weights.is_anchor]
    return leading


# ── download ──────────────────────────────────────────────────────────────────────────────────

log = get_logger()

IN_FLIGHT = 4
"""Parts requested and not yet received: what the spool may owe one rollout."""
RETRY_S = 1.0
"""Pause before a lost link is opened again."""


class Downloader:
    """
    Brings ``staged`` from version to version.

    Args:
        staged: Lives longer than this object, which serves one session of the node.
        connect: Opens a link to the spool that carries nothing but weights, so that trajectories do not wait for them.
    """

    def __init__(
        self,
        staged: StagedVersion,
        connect: Callable[[], Link],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._staged = staged
        self._connect = connect
        self._clock = clock
        self._sleep = sleep
        self._link: Link | None = None
        self._decoding: asyncio.Future[None] | None = None
        self.num_restarts = 0
        """Times that a version began again at the anchor."""

    async def transfer(self, transfer: Transfer) -> float:
        """
        Fetch a version, and the versions between it and the one that is held; returns the seconds that it took.

        Raises:
            TransferError: The spool does not have the version, or what it has is damaged.
        """
        version, started_s = transfer.policy_version, self._clock()
        while not await self._is_held(version):
            pass
        return self._clock() - started_s

    def weights(self) -> dict[str, Tensor]:
        """Read-only views by name, until the next `transfer`."""
        return self._staged.tensors

    def deliver(self, value: StoreValue) -> None:
        """Ignore a rendezvous: there is no process group."""

    def abort(self, abort: Abort) -> None:
        """Ignore it: nobody waits for this rollout."""

    async def aclose(self) -> None:
        """Close the link, after the part being decoded. What was received is kept in ``staged``. Idempotent."""
        if self._decoding is not None:
            await asyncio.wait([self._decoding])
        await self._disconnect()

    async def _is_held(self, policy_version: int) -> bool:
        """Fetch one file towards a version; True if the version is held."""
        try:
            link = self._link = self._link or self._connect()
            await link.send(ListWeights())
            files = (await receive_answer(link, WeightsList)).files
            file = next_file(files, policy_version, self._staged.digest, self._staged.unfinished)
            if file is None:
                return True
            await self._fetch(link, file)
        except LinkError as lost:
            log.warning("weights.link_lost", policy_version=policy_version, cause=str(lost))
            await self._disconnect()
            await self._sleep(RETRY_S)
        return False

    async def _fetch(self, link: Link, file: WeightsFile) -> None:
        """Read a file to its end. What does not fit is thrown away, and the anchor read next; raises if it was one."""
        staged, weights = self._staged, file.weights
        if weights.is_anchor and (staged.digest or staged.unfinished not in (None, weights)):
            self._restarts(weights, "no deltas lead on from the version held")
        try:
            staged.begin(weights)
            await self._read_parts(link, file)
            await self._in_thread(staged.finish)
        except TransferError as error:
            staged.discard()
            await self._disconnect()  # with the answers that are still to come
            if weights.is_anchor:
                raise
            self._restarts(weights, str(error))

    async def _read_parts(self, link: Link, file: WeightsFile) -> None:
        staged = self._staged
        requested = staged.next_part
        while staged.next_part < file.num_parts:
            while requested < min(staged.next_part + IN_FLIGHT, file.num_parts):
                await link.send(FetchWeights(file.weights, requested))
                requested += 1
            part = await receive_answer(link, FetchedWeights)
            where = f"part {staged.next_part} of {file.num_parts} of version {file.weights.policy_version}"
            if part.part < 0:
                raise TransferError(f"the spool no longer has {where}")
            if part.part != staged.next_part or zlib.crc32(part.payload) != part.crc32:
                raise TransferError(f"{where} is damaged")
            await self._in_thread(partial(staged.read, part.payload))

    def _restarts(self, weights: StoredWeights, cause: str) -> None:
        self.num_restarts += 1
        version, restarts = weights.policy_version, self.num_restarts
        log.warning("weights.restarted", policy_version=version, cause=cause, restarts=restarts)

    async def _in_thread(self, decode: Callable[[], None]) -> None:
        """Run ``decode`` to its end, even if this task is cancelled: no other may touch the buffers before."""
        self._decoding = asyncio.ensure_future(asyncio.to_thread(decode))
        await asyncio.shield(self._decoding)

    async def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()
