"""A reward node that cannot start reports the cause to the broker and to its caller."""

from asyncrl.config.run_file import decode
from asyncrl.runtime.node_jobs import run_reward
from asyncrl.runtime.process import StopEvent
from asyncrl.runtime.sessions import RunNode
from asyncrl.wire.handshake import Identity
from asyncrl.wire.run_address import RunAddress
from tests.runtime.refusing import refused


async def start(run: RunAddress, who: Identity) -> None:
    await run_reward(RunNode(who, run, wait_s=10.0), StopEvent())


def test_a_reward_node_without_its_function_leaves_with_the_cause() -> None:
    config = decode({"model": {"path": "m"}, "data": {"train": "t"}, "reward": {"function": "nowhere.py:score"}})
    error, reason = refused(config, "reward", start)
    assert error == reason
    assert "nowhere.py" in error
