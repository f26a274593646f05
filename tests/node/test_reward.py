"""A reward node that cannot start reports the cause to the broker and to its caller."""

import asyncio

from asyncrl.client.handshake import Identity
from asyncrl.client.run_address import RunAddress
from asyncrl.config.run_file import decode
from asyncrl.node.reward import run_reward
from tests.node.refusing import refused


async def start(run: RunAddress, who: Identity) -> None:
    await run_reward(run, who, wait_s=10.0, stopping=asyncio.Event())


def test_a_reward_node_without_its_function_leaves_with_the_cause() -> None:
    config = decode({"model": {"path": "m"}, "data": {"train": "t"}, "reward": {"function": "nowhere.py:score"}})
    error, reason = refused(config, "reward", start)
    assert error == reason
    assert "nowhere.py" in error
