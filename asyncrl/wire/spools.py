"""
A node's side of the run's spools: one link for each, opened again whenever it is lost, and what is fetched over it.

    broker ── Welcome, Spools ─▶ update ─▶ spool-a ═ link         put ─▶ the node's own spool
                                           spool-b ═ link         request(ref) ─▶ the spool that stored it
                                           spool     ═ link         request(image) ─▶ the broker's spool
                                           spool-c   away: requests wait, or end with `SpoolAway`

A put goes to whatever spool the broker has named last. What a lost spool has not stored is put again by the caller, who
keeps every result until it is settled.
"""

import asyncio
import hashlib
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count, islice

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from asyncrl.errors import DecodeError, LinkClosed, LinkError, NotATrajectory, SpoolAway
from asyncrl.log import get_logger
from asyncrl.messages.spool import HOSTED_SPOOL, Fetch, Fetched, Put, SpoolAddress, SpoolRef, SpoolSet
from asyncrl.messages.trajectory import Image, Trajectory
from asyncrl.messages.words import AtFault
from asyncrl.wire.addresses import reached
from asyncrl.wire.files import cut_by_bytes, wanted_bytes
from asyncrl.wire.link import Link

# ── fetches ───────────────────────────────────────────────────────────────────────────────────
# Payloads and pictures requested from one spool, over one link after the other.
#
#     request(ref) ───┐
#     request(ref) ───┼─▶ Fetch [ref, ref] [digest] ─▶ spool ─▶ Fetched [bytes, bytes, bytes] ─▶ a future each
#     request(image) ─┘
#
# What is requested while a request is being sent are collected for the next one. The bytes requested and not yet
# received are bounded: the spool holds what it has sent until it has arrived. What a lost link has not answered is
# requested again over the next one.

MAX_REFS = 64
"""Most payloads and pictures in one `Fetch`; with payloads of 20 kB the answer is about a megabyte."""
MAX_REQUESTED_BYTES = 64 << 20
"""Bytes of payloads requested and not yet received, at which the next request waits."""

Payload = asyncio.Future[memoryview | None]
"""Future of a payload or picture; its result is None if the spool was given up."""


class PendingFetch(Struct, frozen=True, eq=False):
    """Payload or picture that was requested and has not arrived."""

    wanted: SpoolRef | Image
    payload: Payload
    waits: bool
    """True to wait while the spool is away; else `fail_pending` ends the request."""


class FetchQueue:
    """Requests to one spool, of any number of concurrent callers."""

    def __init__(self) -> None:
        self._wanted: deque[PendingFetch] = deque()
        self._is_wanted = asyncio.Event()
        self._requested: dict[int, list[PendingFetch]] = {}
        self._requested_bytes = 0
        self._has_arrived = asyncio.Event()
        self._request_ids = count(1)

    def request(self, what: SpoolRef | Image, *, waits: bool) -> Payload:
        """Request a payload or a picture. An empty result means that the spool does not have it."""
        wanted = PendingFetch(what, asyncio.get_running_loop().create_future(), waits)
        self._wanted.append(wanted)
        self._is_wanted.set()
        return wanted.payload

    async def run(self, link: Link) -> None:
        """
        Send requests and deliver answers until cancelled. Later calls go on with other links.

        Raises:
            LinkError: The link is lost; `LinkReset` if the spool restarted.
        """
        self._request_again()
        requesting = asyncio.create_task(self._send_requests(link))
        receiving = asyncio.create_task(self._receive_answers(link))
        try:
            done, _ = await asyncio.wait([requesting, receiving], return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        except LinkClosed as error:
            raise LinkError("the link to the spool is closed") from error
        finally:
            requesting.cancel()
            receiving.cancel()
            await asyncio.gather(requesting, receiving, return_exceptions=True)

    def fail_pending(self, error: Exception) -> None:
        """The spool is away: raise ``error`` in all callers that do not wait for it."""
        self._request_again()
        for wanted in self._wanted:
            if not wanted.waits:
                wanted.payload.set_exception(error)
        self._forget_done()

    def give_up(self) -> None:
        """The spool will not return: answer all callers with None."""
        self._request_again()
        for wanted in self._wanted:
            wanted.payload.set_result(None)
        self._forget_done()

    def _request_again(self) -> None:
        unanswered = [wanted for request in self._requested.values() for wanted in request]
        self._wanted.extendleft(reversed(unanswered))
        self._requested.clear()
        self._requested_bytes = 0
        self._forget_done()

    def _forget_done(self) -> None:
        """Forget requests whose callers were answered, or have given up."""
        self._wanted = deque(wanted for wanted in self._wanted if not wanted.payload.done())
        if self._wanted:
            self._is_wanted.set()
        else:
            self._is_wanted.clear()

    async def _send_requests(self, link: Link) -> None:
        while True:
            await self._is_wanted.wait()
            while self._requested_bytes >= MAX_REQUESTED_BYTES:
                self._has_arrived.clear()
                await self._has_arrived.wait()
            await link.send(self._next_fetch())

    def _next_fetch(self) -> Fetch:
        """Take the first requests out of the queue, as many as fit into a message."""
        fitting = next(cut_by_bytes((wanted.wanted for wanted in islice(self._wanted, MAX_REFS)), wanted_bytes))
        requested = [self._wanted.popleft() for _ in fitting]
        if not self._wanted:
            self._is_wanted.clear()
        requested.sort(key=lambda wanted: isinstance(wanted.wanted, Image))  # the order of the answer
        request_id = next(self._request_ids)
        self._requested[request_id] = requested
        self._requested_bytes += sum(map(wanted_bytes, fitting))
        refs = [what for what in fitting if isinstance(what, SpoolRef)]
        return Fetch(request_id, refs, [what.digest for what in fitting if isinstance(what, Image)])

    async def _receive_answers(self, link: Link) -> None:
        while True:
            answer = await link.receive()
            if not isinstance(answer, Fetched):
                continue
            requested = self._requested.pop(answer.request_id, [])
            self._requested_bytes -= sum(wanted_bytes(wanted.wanted) for wanted in requested)
            self._has_arrived.set()
            for wanted, payload in zip(requested, answer.payloads, strict=False):
                if not wanted.payload.done():
                    wanted.payload.set_result(payload)


# ── spools ────────────────────────────────────────────────────────────────────────────────────

log = get_logger()

RECONNECT_S = 0.5
"""Seconds between the loss of a link and the next one."""


def reached_spools(spools: SpoolSet, via: str) -> SpoolSet:
    """The same spools with addresses to connect to, for a node that reached the broker at ``via``."""
    return replace(spools, spools=[replace(one, address=reached(one.address, via)) for one in spools.spools])


def hosted_spool(spools: SpoolSet, via: str) -> SpoolAddress | None:
    """The spool in the broker's process, as `reached_spools`; None if there is none."""
    return next((spool for spool in reached_spools(spools, via).spools if spool.name == HOSTED_SPOOL), None)


class SpoolLink(Struct, eq=False):
    """One spool, with what was requested from it."""

    fetches: FetchQueue
    address: SpoolAddress | None = None
    """None while the spool is away."""
    link: Link | None = None
    """None while there is no link."""
    keeping: "asyncio.Task[None] | None" = None


class SpoolLinks:
    """
    Links of one node to all spools of a run. They are open while `run` is running, and closed when it ends.

    Args:
        connect: Opens a link to a spool.
        spools: The spools at first; `update` tells later ones.
        via: Address at which this node reached the broker; empty for one in this process.
    """

    def __init__(
        self,
        connect: Callable[[SpoolAddress], Link],
        spools: SpoolSet,
        *,
        via: str = "",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._connect = connect
        self._via = via
        self._sleep = sleep
        self._links: dict[str, SpoolLink] = {}
        self.spools = SpoolSet()
        """The spools as they were told last, with addresses that can be connected to."""
        self._own = ""
        self._lost: frozenset[str] = frozenset()
        self._linked = asyncio.Event()
        """Set, and replaced, when a link was opened or the node's own spool has changed."""
        self._tasks: asyncio.TaskGroup | None = None
        self.update(spools)

    async def run(self) -> None:
        """Keep the links open until cancelled. Raises `ConfigError` if a spool needs a secret that there is not."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for spool in self._links.values():
                    self._keep(spool)
                await asyncio.get_running_loop().create_future()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._tasks = None

    def update(self, spools: SpoolSet) -> None:
        """Open and close links, so that there is one to each of these spools and no other."""
        self.spools = spools = reached_spools(spools, self._via)
        self._own, self._lost = spools.own, frozenset(spools.lost)
        addresses = {spool.name: spool for spool in spools.spools}
        for name in addresses:
            self._of(name)
        for name, spool in self._links.items():
            if (address := addresses.get(name)) != spool.address:
                spool.address = address
                self._keep(spool)
            if name in self._lost:
                spool.fetches.give_up()
            elif address is None:
                spool.fetches.fail_pending(SpoolAway(f"the spool {name} is away"))
        self._notify()

    async def put(self, message: Put) -> None:
        """Send to the node's own spool. Waits while there is none, and while too much is on the way to it."""
        while True:
            spool = self._links.get(self._own)
            link = spool.link if spool else None
            if spool is None or link is None:
                await self._linked.wait()
                continue
            try:
                await link.send(message)
                return
            except LinkError:
                if spool.link is link:
                    await self._linked.wait()

    def request(self, wanted: SpoolRef | Image, *, waits: bool) -> Payload:
        """
        Ask for a payload, or for a picture of a prompt. None answers for a spool that was given up.

        Args:
            waits: Wait for a spool that is away; False raises `SpoolAway` in the answer.
        """
        name = HOSTED_SPOOL if isinstance(wanted, Image) else wanted.spool
        spool = self._of(name)
        payload = spool.fetches.request(wanted, waits=waits)
        if name in self._lost:
            spool.fetches.give_up()
        elif spool.address is None:
            spool.fetches.fail_pending(SpoolAway(f"the spool {name} is away"))
        return payload

    def _of(self, name: str) -> SpoolLink:
        if name not in self._links:
            self._links[name] = SpoolLink(FetchQueue())
        return self._links[name]

    def _notify(self) -> None:
        linked, self._linked = self._linked, asyncio.Event()
        linked.set()

    def _keep(self, spool: SpoolLink) -> None:
        """Replace the task that keeps the link to this spool; does nothing before `run`."""
        if spool.keeping is not None:
            spool.keeping.cancel()
            spool.keeping = spool.link = None
        if spool.address is not None and self._tasks is not None:
            spool.keeping = self._tasks.create_task(self._reconnect(spool, spool.address))

    async def _reconnect(self, spool: SpoolLink, address: SpoolAddress) -> None:
        while True:
            try:
                await self._hold_link(spool, address)
            except LinkError as lost:
                log.warning("spool.link_lost", spool=address.name, address=address.address, cause=str(lost))
            await self._sleep(RECONNECT_S)

    async def _hold_link(self, spool: SpoolLink, address: SpoolAddress) -> None:
        """Open a link and use it until it is lost; raises `LinkError` then."""
        link = self._connect(address)
        spool.link = link
        self._notify()
        try:
            await spool.fetches.run(link)
        finally:
            if spool.link is link:
                spool.link = None
            await link.aclose()


# ── payloads ──────────────────────────────────────────────────────────────────────────────────
# Client of the run's spools: fetches trajectories by reference, checks and decodes them.

_decoder = msgspec.msgpack.Decoder(Trajectory)


class PayloadClient:
    """
    Fetches payloads from all spools, for any number of concurrent callers.

    Args:
        spools: Owned by the caller. Payloads arrive only while its `run` is running.
    """

    def __init__(self, spools: SpoolLinks) -> None:
        self._spools = spools

    async def fetch(self, ref: SpoolRef, deadline_s: float) -> Trajectory:
        """
        Fetch one trajectory.

        Raises:
            SpoolAway: Its spool is away, at once; the payload can be read when it is back.
            DecodeError: The spool no longer has it, or the payload is damaged.
            TimeoutError: It has not arrived within ``deadline_s``.
        """
        async with asyncio.timeout(deadline_s):
            payload = await self._spools.request(ref, waits=False)
        return read_trajectory(ref, payload)

    async def fetch_all(self, refs: Sequence[SpoolRef], deadline_s: float) -> list[Trajectory | None]:
        """
        Fetch trajectories, in the order of ``refs``; None for those whose spool was given up.

        Raises:
            DecodeError: One of them cannot be read.
            TimeoutError: Not all arrived within ``deadline_s``.
        """
        payloads = await self.fetch_payloads(refs, deadline_s)
        return [
            None if payload is None else read_trajectory(ref, payload)
            for ref, payload in zip(refs, payloads, strict=True)
        ]

    async def fetch_payloads(self, refs: Sequence[SpoolRef], deadline_s: float) -> list[memoryview | None]:
        """
        Fetch payloads as they are, in the order of ``refs``; None for those whose spool was given up.

        Raises `TimeoutError` if they do not arrive within ``deadline_s``, which includes the wait for spools that are
        away.
        """
        async with asyncio.timeout(deadline_s):
            # Futures and not tasks: with hundreds at a time, a task each costs more than reading the payloads.
            payloads = [self._spools.request(ref, waits=True) for ref in refs]
            return [await payload for payload in payloads]


def read_trajectory(ref: SpoolRef, payload: memoryview | None) -> Trajectory:
    """
    Decode a payload. The arrays of the trajectory stay views into it.

    Raises:
        NotATrajectory: It is what its sender stored, but no trajectory.
        DecodeError: The payload is empty (the spool no longer has it), damaged, or None (the spool was given up).
    """
    place = f"the payload at {ref.spool}, segment {ref.segment}, offset {ref.offset}"
    if payload is None:
        raise DecodeError(f"{place} is lost: its spool was away for too long")
    if not payload:
        raise DecodeError(f"the spool no longer has {place}")
    if (found := zlib.crc32(payload)) != ref.crc32:
        raise DecodeError(f"{place} is damaged: expected checksum {ref.crc32:#010x}, got {found:#010x}")
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotATrajectory(f"{place} is not a trajectory: {error}") from error


def at_fault(error: DecodeError) -> AtFault:
    """Role that an error of `read_trajectory` is held against: whoever stored the payload, or did not keep it."""
    return "rollout" if isinstance(error, NotATrajectory) else "spool"


# ── images ────────────────────────────────────────────────────────────────────────────────────
# Pictures of prompts in a node's memory, each fetched once from the broker's spool.
#
#     fetch([a, b]) ─┬─▶ cached
#                    └─▶ arriving: one request, however many callers ─▶ SHA-256 compared ─▶ cached, the newest 256 MiB
#
# The cache outlives the links of a session: its pictures stay, and those that are arriving are requested again over
# the next links.

MAX_BYTES = 256 << 20
"""Size of the cache, about 2,500 pictures of 100 kB."""


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
        self._arriving: dict[bytes, tuple[Image, asyncio.Future[bytes]]] = {}
        """Pictures that were requested and have not arrived, each with the future of its callers."""

    def connect(self, spools: SpoolLinks) -> None:
        """Fetch over these links, and request again over them the pictures that are arriving."""
        self._spools = spools
        for image, _ in self._arriving.values():
            self._request(spools, image)

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
            self._arriving[digest] = image, asyncio.get_running_loop().create_future()
            if self._spools:
                self._request(self._spools, image)
        return self._arriving[digest][1]

    def _request(self, spools: SpoolLinks, image: Image) -> None:
        spools.request(image, waits=True).add_done_callback(partial(self._arrived, image))

    def _arrived(self, image: Image, payload: Payload) -> None:
        if payload.cancelled() or (arriving := self._arriving.pop(image.digest, None)) is None:
            return
        waiting, found = arriving[1], payload.result()
        content = bytes(found or b"")
        if hashlib.sha256(content).digest() == image.digest:
            self.num_fetched += 1
            self._contents[image.digest] = content
            self._num_bytes += len(content)
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= len(self._contents.pop(next(iter(self._contents))))
            waiting.set_result(content)
            return
        cause = "arrived damaged" if content else "is not among those of the run's prompts"
        if found is None:
            cause = "is lost: the broker's spool was away for too long"
        waiting.set_exception(DecodeError(f"the picture {image.digest.hex()[:12]} {cause}"))
        waiting.exception()  # Retrieved here too: asyncio would warn if all callers have timed out.
