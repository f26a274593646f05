"""`asyncrl drain`: asks the broker of a running run to drain one node."""

import asyncio
import os

from asyncrl.actor.link import Link
from asyncrl.client.handshake import identity, join, leave, send_beats
from asyncrl.client.run_address import RunAddress
from asyncrl.errors import LinkError, RunFailed
from asyncrl.messages import Beat, Drain, Drained, Finished

ANSWER_S = 5.0
"""Seconds for the broker to answer the handshake."""


async def drain(run: RunAddress, node: str, wait_s: float) -> None:
    """
    Drain a node, and wait until it has left.

    Raises `LinkError` if the broker does not answer or the connection ends, and `RunFailed` if the node cannot be
    drained or does not leave within ``wait_s`` seconds.
    """
    link, welcome = await join(run, identity("supervisor", _name(run)), ANSWER_S)
    beats = asyncio.create_task(send_beats(link, welcome.beat_s, Beat))
    try:
        async with asyncio.timeout(wait_s):
            await link.send(Drain(node))
            problem = await _answer(link)
    except TimeoutError:
        raise RunFailed(
            f"{node} was asked to leave, but did not within {wait_s:g} s; see its log, or run `asyncrl events`"
        ) from None
    finally:
        beats.cancel()
        await leave(link, "done")
    if problem:
        raise RunFailed(problem)


def _name(run: RunAddress) -> str:
    """Name of this command in the run: one that its key, if it has one, is for."""
    found = run.credentials()
    return f"{found.name if found and found.name else 'operator'}-{os.getpid()}"


async def _answer(link: Link) -> str:
    while True:
        match await link.receive():
            case Drained(problem=problem):
                return problem
            case Finished():
                raise LinkError("the run ended before the node left")
