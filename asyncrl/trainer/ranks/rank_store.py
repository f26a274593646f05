"""
Rendezvous of the ranks over a link to the first rank's hub, beside the link for their work.

    rank 0 ─ memory ─┐
    rank 1 ─ link ───┼─ StoreSet, StoreGet ─▶ RankHub ── StoreValue ─▶ the rank that asked
    rank 2 ─ link ───┘

A link of its own is read all the time, also while the rank loads its model.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from asyncrl.actor.link import Link
from asyncrl.errors import LinkError
from asyncrl.messages.session import StoreValue
from asyncrl.weights.groups.deadline import Deadline
from asyncrl.weights.groups.store import LinkStore

GROUP = "ranks"


@asynccontextmanager
async def rank_store(link: Link, names: Sequence[str], deadline_s: float) -> AsyncIterator[LinkStore]:
    """
    The store of the group of all ranks, for use in another thread. It is abandoned, and the link closed, at the end.

    Args:
        names: Each rank, for error messages.
        deadline_s: Limit of all waits together.
    """
    store = LinkStore(GROUP, names, link.send, asyncio.get_running_loop(), Deadline(deadline_s))
    receiving = asyncio.create_task(_deliver(link, store))
    try:
        yield store
    finally:
        store.abandon("the group is no longer needed")
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        await link.aclose()


async def _deliver(link: Link, store: LinkStore) -> None:
    try:
        while True:
            if isinstance(message := await link.receive(), StoreValue):
                store.deliver(message)
    except LinkError as error:
        store.abandon(f"the link to the first rank is gone: {error}")
