"""A spool's process: its files, a socket for payloads, and a link to the broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from asyncrl.actor.link import Link
from asyncrl.actor.sockets.zmq_hub import ZmqHub
from asyncrl.checks.permit import Permits
from asyncrl.client.handshake import Identity, hello, identity
from asyncrl.client.run_address import RunAddress
from asyncrl.config.addresses import host_of, is_wildcard, port_of, tcp
from asyncrl.config.config import from_json
from asyncrl.files.private_socket import private_socket
from asyncrl.log import get_logger
from asyncrl.messages.session import Hello, Welcome
from asyncrl.messages.spool import SpoolAddress
from asyncrl.messages.wire import CODEC
from asyncrl.node.kept_socket import keep_socket
from asyncrl.node.machine.local_address import route_to
from asyncrl.node.runner import join_steadily, run_sessions, serve, unless_told
from asyncrl.node.spool_keys import SpoolKeys
from asyncrl.spool.actor import SpoolActor
from asyncrl.spool.folder import SpoolIdentity, open_folder, write_identity
from asyncrl.spool.segments import Segments

log = get_logger()


async def run_spool(
    run: RunAddress, name: str, folder: Path, *, bind: str, wait_s: float, stopping: asyncio.Event
) -> None:
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
    segments = await asyncio.to_thread(Segments, folder)
    try:
        own = open_folder(folder, name)
        keys = SpoolKeys(run)
        async with _listening(run, own, folder, bind) as listen:
            hub = ZmqHub(listen, CODEC, keys=keys.hub)
            kept = asyncio.create_task(keep_socket(hub), name="socket")
            try:
                await _serve(run, own, folder, segments, hub, keys=keys, wait_s=wait_s, stopping=stopping)
            finally:
                kept.cancel()
                await hub.aclose()
    finally:
        segments.close()


async def _serve(
    run: RunAddress,
    own: SpoolIdentity,
    folder: Path,
    segments: Segments,
    hub: ZmqHub,
    *,
    keys: SpoolKeys,
    wait_s: float,
    stopping: asyncio.Event,
) -> None:
    address = SpoolAddress(own.name, await asyncio.to_thread(_reachable, hub.address, run), keys.public)
    log.info("spool.serves", spool=own.name, address=address.address, payloads=len(segments))
    _report_torn_tail(segments)

    def say(who: Identity) -> Hello:
        return replace(hello(who), spool=address, run_id=own.run_id)

    async def session(who: Identity, link: Link, welcome: Welcome) -> None:
        segments.segment_bytes = from_json(welcome.config).broker.segment_bytes
        write_identity(folder, replace(own, run_id=welcome.run_id))
        permits = Permits(welcome.permit_key)
        actor = SpoolActor(
            own.name, segments, hub, link, permits=permits, accept=lambda accepted: keys.accept(accepted, hub)
        )
        await serve(actor, link, beat_s=welcome.beat_s, stopping=stopping)

    who, link, welcome = await unless_told(stopping, join_steadily(run, identity("spool", own.name), wait_s, say))
    await run_sessions(session, who, link, welcome, run=run, wait_s=wait_s, stopping=stopping, make_hello=say)


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


def _report_torn_tail(segments: Segments) -> None:
    if segments.torn is not None:
        torn = segments.torn
        log.warning("spool.cut", path=str(torn.path), offset=torn.offset, num_bytes=torn.num_bytes)
