import asyncio
from pathlib import Path

import pytest

from asyncrl.actor.message import Message
from asyncrl.actor.zmq_hub import ZmqHub
from asyncrl.cli.drain import drain
from asyncrl.client.run_address import RunAddress
from asyncrl.errors import LinkError, RunFailed
from asyncrl.keys.allow_list import owns
from asyncrl.keys.key import new_key
from asyncrl.keys.key_file import write_key
from asyncrl.messages import CODEC, Beat, Bye, Drain, Drained, Finished, Hello, SpoolSet, Welcome

WELCOME = Welcome(broker_term=1, run_dir="/runs/x", config=b"{}", spools=SpoolSet(), beat_s=60.0)


async def asked(*answers: Message, wait_s: float = 5.0, key: Path | None = None) -> list[Message]:
    """Run `asyncrl drain` against a broker that gives these answers; returns the messages the broker received."""
    hub = ZmqHub("ipc://*", CODEC)
    heard: list[Message] = []

    async def broker() -> None:
        while True:
            peer, message = await hub.receive()
            heard.append(message)
            match message:
                case Hello():
                    hub.send(peer, WELCOME)
                case Drain():
                    for answer in answers:
                        hub.send(peer, answer)

    serving = asyncio.create_task(broker())
    try:
        await drain(RunAddress(hub.address, key), "rollout-1", wait_s)
    finally:
        serving.cancel()
        await hub.aclose()
    return heard


def test_drain_waits_until_the_node_has_left() -> None:
    heard = asyncio.run(asked(Drained("rollout-1")))
    assert [type(message) for message in heard if not isinstance(message, Beat)][:2] == [Hello, Drain]
    assert all(isinstance(message, Bye | Beat) for message in heard[2:])


@pytest.mark.parametrize(("key", "name"), [(None, "operator"), ("alice", "alice")])
def test_an_operator_has_a_name_that_the_key_is_for(tmp_path: Path, key: str | None, name: str) -> None:
    if key:
        write_key(tmp_path / "key", new_key(key, ("supervisor",), b"B" * 32))
    hello, *_ = asyncio.run(asked(Drained("rollout-1"), key=tmp_path / "key" if key else None))
    assert isinstance(hello, Hello)
    assert owns(name, hello.node)


def test_a_refusal_of_the_broker_is_reported() -> None:
    with pytest.raises(RunFailed, match="there is no node rollout-1"):
        asyncio.run(asked(Drained("rollout-1", "there is no node rollout-1; those that can be drained are: none")))


def test_the_time_to_wait_for_a_node_is_limited() -> None:
    with pytest.raises(RunFailed, match=r"rollout-1 was asked to leave, but did not within 0\.1 s"):
        asyncio.run(asked(wait_s=0.1))


def test_a_run_that_ends_meanwhile_is_reported() -> None:
    with pytest.raises(LinkError, match="the run ended before the node left"):
        asyncio.run(asked(Finished("finished", "")))
