import asyncio
from pathlib import Path

import pytest

from asyncrl.actor.message import Message
from asyncrl.actor.zmq_link import ZmqHub
from asyncrl.cli.drain import broker_of, drain
from asyncrl.errors import ConfigError, LinkError, RunFailed
from asyncrl.messages import CODEC, Beat, Bye, Drain, Drained, Finished, Hello, Welcome

WELCOME = Welcome(broker_term=1, run_dir="/runs/x", config=b"{}", spool="tcp://127.0.0.1:9", beat_s=60.0)


async def asked(*answers: Message, wait_s: float = 5.0) -> list[Message]:
    """Run `asyncrl drain` against a broker that gives these answers; returns the messages the broker received."""
    hub = ZmqHub("tcp://127.0.0.1:0", CODEC)
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
        await drain(hub.address, "rollout-1", wait_s)
    finally:
        serving.cancel()
        await hub.aclose()
    return heard


def test_drain_waits_until_the_node_has_left() -> None:
    heard = asyncio.run(asked(Drained("rollout-1")))
    assert [type(message) for message in heard if not isinstance(message, Beat)][:2] == [Hello, Drain]
    assert all(isinstance(message, Bye | Beat) for message in heard[2:])


def test_a_refusal_of_the_broker_is_reported() -> None:
    with pytest.raises(RunFailed, match="there is no node rollout-1"):
        asyncio.run(asked(Drained("rollout-1", "there is no node rollout-1; those that can be drained are: none")))


def test_the_time_to_wait_for_a_node_is_limited() -> None:
    with pytest.raises(RunFailed, match=r"rollout-1 was asked to leave, but did not within 0\.1 s"):
        asyncio.run(asked(wait_s=0.1))


def test_a_run_that_ends_meanwhile_is_reported() -> None:
    with pytest.raises(LinkError, match="the run ended before the node left"):
        asyncio.run(asked(Finished("finished", "")))


def test_a_local_run_directory_gives_the_address(tmp_path: Path) -> None:
    (tmp_path / "broker.address").write_text("tcp://127.0.0.1:5570\n")
    assert broker_of(str(tmp_path)) == broker_of("tcp://127.0.0.1:5570") == "tcp://127.0.0.1:5570"


def test_neither_address_nor_run_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a broker"):
        broker_of(str(tmp_path))
