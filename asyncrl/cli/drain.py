"""`asyncrl drain`: asks the broker of a running run to drain one node."""

import asyncio
import os
from pathlib import Path

from asyncrl.actor.link import Link
from asyncrl.client.handshake import identity, join, leave, send_beats
from asyncrl.errors import ConfigError, LinkError, RunFailed
from asyncrl.messages import Beat, Drain, Drained, Finished
from asyncrl.observe.run_directory import RunDirectory

ANSWER_S = 5.0
"""Seconds for the broker to answer the handshake."""


def broker_of(where: str) -> str:
    """Address of a run's broker, given that address or a run directory of this machine; otherwise `ConfigError`."""
    if where.startswith(("tcp://", "ipc://")):
        return where
    address = RunDirectory(Path(where)).address
    if not address.is_file():
        raise ConfigError(f"{where} is neither a broker's address nor a run directory with {address.name} in it")
    return address.read_text().strip()


async def drain(address: str, node: str, wait_s: float) -> None:
    """
    Drain a node, and wait until it has left.

    Raises `LinkError` if the broker does not answer or the connection ends, and `RunFailed` if the node cannot be
    drained or does not leave within ``wait_s`` seconds.
    """
    link, welcome = await join(address, identity("supervisor", f"operator-{os.getpid()}"), ANSWER_S)
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


async def _answer(link: Link) -> str:
    while True:
        match await link.receive():
            case Drained(problem=problem):
                return problem
            case Finished():
                raise LinkError("the run ended before the node left")
