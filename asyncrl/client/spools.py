"""
A node's links to the spools of its run: one link for each, opened again whenever it is lost.

    broker ── Welcome, Spools ─▶ update ─▶ spool-a ═ link         put ─▶ the node's own spool
                                           spool-b ═ link         request(ref) ─▶ the spool that stored it
                                           spool     ═ link         request(image) ─▶ the broker's spool
                                           spool-c   away: requests wait, or end with `SpoolAway`

A put goes to whatever spool the broker has named last. What a lost spool has not stored is put again by the caller, who
keeps every result until it is settled.
"""

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.actor.link import Link
from asyncrl.client.fetches import FetchQueue, Payload
from asyncrl.config.addresses import reached
from asyncrl.errors import LinkError, SpoolAway
from asyncrl.log import get_logger
from asyncrl.messages.spool import HOSTED_SPOOL, Put, SpoolAddress, SpoolRef, SpoolSet
from asyncrl.messages.trajectory import Image

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
                spool.fetches.away(SpoolAway(f"the spool {name} is away"))
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
            spool.fetches.away(SpoolAway(f"the spool {name} is away"))
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
