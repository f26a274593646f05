import asyncio

import pytest

from asyncrl.actor.message import Message
from asyncrl.cli.operate.drain import drain
from asyncrl.client.run_address import RunAddress
from asyncrl.errors import ConfigError, LinkError, RunFailed
from asyncrl.messages.session import Bye, Drain, Hello
from asyncrl.messages.supervisor import Drained, Finished
from tests.cli.operate.conversation import with_broker


async def asked(*answers: Message, wait_s: float = 5.0) -> list[Message]:
    """Run `asyncrl drain` against a broker that gives these answers; returns the messages the broker received."""

    async def command(run: RunAddress) -> None:
        await drain(run, "rollout-1", wait_s)

    return (await with_broker(command, {Drain: answers}))[1]


def test_drain_waits_until_the_node_has_left() -> None:
    heard = asyncio.run(asked(Drained("rollout-1")))
    assert [type(message) for message in heard] == [Hello, Drain, Bye]


def test_a_refusal_of_the_broker_is_reported() -> None:
    problem = "there is no node rollout-1; those that can be drained are: none"
    with pytest.raises(ConfigError, match=problem):
        asyncio.run(asked(Drained("rollout-1", problem, is_refused=True)))


def test_a_node_that_was_lost_meanwhile_is_no_mistake_of_the_operator() -> None:
    with pytest.raises(RunFailed, match="it was lost before it could leave"):
        asyncio.run(asked(Drained("rollout-1", "it was lost before it could leave: silent for 10 s")))


def test_the_time_to_wait_for_a_node_is_limited() -> None:
    with pytest.raises(RunFailed, match=r"rollout-1 was asked to leave, but did not within 0\.1 s"):
        asyncio.run(asked(wait_s=0.1))


def test_a_run_that_ends_meanwhile_is_reported() -> None:
    with pytest.raises(LinkError, match="the run ended before the node left"):
        asyncio.run(asked(Finished("finished", "")))
