"""A spool's process: its files, a socket for payloads, and a link to the broker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from asyncrl.errors import ConfigError, LinkError
from asyncrl.files.lock import is_gone, make_again, private_socket
from asyncrl.log import about, get_logger
from asyncrl.messages.permit import Permits
from asyncrl.messages.spool import SpoolAddress
from asyncrl.runtime.keys import SpoolKeys
from asyncrl.runtime.local_address import route_to
from asyncrl.runtime.process import StopEvent
from asyncrl.runtime.sessions import RunNode
from asyncrl.spool.actor import SpoolActor
from asyncrl.spool.folder import SpoolIdentity, open_folder, write_identity
from asyncrl.spool.segments import Segments
from asyncrl.wire.addresses import host_of, is_wildcard, port_of, tcp
from asyncrl.wire.handshake import hello, identity
from asyncrl.wire.run_address import RunAddress
from asyncrl.wire.zmq_hub import ZmqHub

# ── kept socket ───────────────────────────────────────────────────────────────────────────────
# Unix sockets that outlive a cleaner of temporary files: whoever connects later would wait for ever.

log = get_logger()

LOOK_S = 2.0
"""Seconds between two looks at a socket: the longest time that a node which connects waits for a new one."""


async def keep_socket(hub: ZmqHub, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """
    Listen again at the hub's unix socket whenever its file is gone, until cancelled. Connections are not touched.

    If another user has made the folder meanwhile, the log says so, once; the next start takes another one.
    """
    is_told = False
    while hub.address.startswith("ipc://"):
        await sleep(LOOK_S)
        if not is_gone(hub.address):
            continue
        try:
            make_again(hub.address)
            hub.listen_again()
        except (ConfigError, LinkError) as error:
            if not is_told:
                log.error("socket.lost", address=hub.address, cause=str(error))
                is_told = True
        else:
            log.warning("socket.made_again", address=hub.address)


# ── spool ─────────────────────────────────────────────────────────────────────────────────────


async def run_spool(node: RunNode, stopping: StopEvent, *, folder: Path, bind: str) -> None:
    """
    Store and serve payloads until the run is over or ``stopping`` is set. The files in ``folder`` stay.

    Args:
        bind: Address to serve at; empty takes a free port of the interface on the route to the broker.

    Raises:
        ConfigError: ``folder`` belongs to another spool.
        LinkError: ``bind`` cannot be bound, or the broker is gone.
        LedgerError: The files are damaged, or in use.
        RunFailed: The disk is full or broken.
    """
    async with node.part_of_run(stopping):
        segments = await asyncio.to_thread(Segments, folder)
        try:
            own = open_folder(folder, node.who.node)
            about(node=own.name)  # which is its name from now on
            keys = SpoolKeys(node.run)
            async with _listening(node.run, own, folder, bind) as listen:
                hub = keys.listen(listen)
                kept = asyncio.create_task(keep_socket(hub), name="socket")
                try:
                    await _serve(node, own, folder, segments, hub, keys)
                finally:
                    kept.cancel()
                    await hub.aclose()
        finally:
            segments.close()


async def _serve(  # noqa: PLR0917  private, and all of different types
    node: RunNode, own: SpoolIdentity, folder: Path, segments: Segments, hub: ZmqHub, keys: SpoolKeys
) -> None:
    address = SpoolAddress(own.name, await asyncio.to_thread(_reachable, hub.address, node.run), keys.public)
    log.info("spool.serves", spool=own.name, address=address.address, payloads=len(segments))
    if torn := segments.torn:
        log.warning("spool.cut", path=str(torn.path), offset=torn.offset, num_bytes=torn.num_bytes)
    node.who = identity("spool", own.name)
    node.make_hello = lambda who: replace(hello(who), spool=address, run_id=own.run_id)
    async for session in node.sessions():
        async with session:
            segments.segment_bytes = session.config.broker.segment_bytes
            write_identity(folder, replace(own, run_id=session.welcome.run_id))
            permits = Permits(session.welcome.permit_key)
            actor = SpoolActor(
                own.name,
                segments,
                hub,
                session.link,
                permits=permits,
                accept=lambda accepted: keys.accept(accepted, hub),
            )
            await session.serve(actor)


@asynccontextmanager
async def _listening(run: RunAddress, own: SpoolIdentity, folder: Path, bind: str) -> AsyncIterator[str]:
    """Address to bind: ``bind``, or one that is reachable wherever the broker is."""
    if bind:
        yield bind
    elif run.broker.startswith("ipc://"):
        with private_socket("spool", own.folder_id, folder) as address:
            yield address
    else:
        yield tcp(await asyncio.to_thread(route_to, host_of(run.broker)), 0)


def _reachable(bound: str, run: RunAddress) -> str:
    """The ``bound`` address as other nodes can use it: a wildcard is told with the host of the route to the broker."""
    return tcp(route_to(host_of(run.broker)), port_of(bound)) if is_wildcard(bound) else bound
