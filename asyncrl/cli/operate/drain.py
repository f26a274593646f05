"""`asyncrl drain` and `asyncrl admit`: one node leaves a running run, or is given work again."""

import asyncio

from asyncrl.actor.link import Link
from asyncrl.cli.operate.session import operator
from asyncrl.client.run_address import RunAddress
from asyncrl.errors import ConfigError, LinkError, RunFailed
from asyncrl.messages.session import Drain
from asyncrl.messages.supervisor import Admit, Admitted, Drained, Finished


async def drain(run: RunAddress, node: str, wait_s: float) -> None:
    """
    Drain a node, and wait until it has left.

    Raises:
        ConfigError: There is no such node, or it cannot be drained.
        RunFailed: The node was lost, or does not leave within ``wait_s`` seconds.
        LinkError: The broker does not answer, or the connection ends.
    """
    async with operator(run) as session:
        try:
            async with asyncio.timeout(wait_s):
                await session.link.send(Drain(node))
                answer = await _answer(session.link)
        except TimeoutError:
            raise RunFailed(
                f"{node} was asked to leave, but did not within {wait_s:g} s; see its log, or run `asyncrl events`"
            ) from None
    if answer.problem:
        raise (ConfigError if answer.is_refused else RunFailed)(answer.problem)


async def admit(run: RunAddress, node: str) -> None:
    """
    Have a barred node given work again.

    Raises:
        ConfigError: There is no such node, or it is not barred.
        LinkError: The broker does not answer, or the connection ends.
    """
    async with operator(run) as session:
        answer = await session.ask(Admit(node), Admitted)
    if answer.problem:
        raise ConfigError(answer.problem)


async def _answer(link: Link) -> Drained:
    while True:
        match await link.receive():
            case Drained() as answer:
                return answer
            case Finished():
                raise LinkError("the run ended before the node left")
