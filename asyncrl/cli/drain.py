"""`asyncrl drain`: a few words with the broker of a run that goes on."""

import asyncio
import os
from pathlib import Path

from asyncrl.actor.link import Link
from asyncrl.client.handshake import beat, identity, join, leave
from asyncrl.errors import ConfigError, LinkError, RunFailed
from asyncrl.messages import Beat, Drain, Drained, Finished
from asyncrl.observe.run_directory import RunDirectory

ANSWER_S = 5.0
"""For the broker to answer at all."""


def broker_of(where: str) -> str:
    """
    The address of a run's broker.

    Args:
        where: It, or the directory of a run on this machine.

    Raises:
        ConfigError: It is neither.
    """
    if where.startswith(("tcp://", "ipc://")):
        return where
    address = RunDirectory(Path(where)).address
    if not address.is_file():
        raise ConfigError(f"{where} is neither a broker's address nor a run directory with {address.name} in it")
    return address.read_text().strip()


async def drain(address: str, node: str, wait_s: float) -> None:
    """
    Make a node hand over what it has in hand and leave, and wait until it has.

    Raises:
        LinkError: The broker does not answer, or went away meanwhile.
        RunFailed: The node cannot be drained, or has not left within ``wait_s``; says why.
    """
    link, welcome = await join(address, identity("supervisor", f"operator-{os.getpid()}"), ANSWER_S)
    beats = asyncio.create_task(beat(link, welcome.beat_s, Beat))
    try:
        async with asyncio.timeout(wait_s):
            await link.send(Drain(node))
            problem = await _answer(link)
    except TimeoutError:
        raise RunFailed(f"{node} was asked to leave and has not within {wait_s:g} s; see `asyncrl events`") from None
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
                raise LinkError("the run ended before the node had left")
