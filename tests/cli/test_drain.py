import asyncio

import pytest

from asyncrl.actor.zmq_link import ZmqHub
from asyncrl.cli.drain import broker_of, drain
from asyncrl.errors import ConfigError, LinkError, RunFailed
from asyncrl.messages import Beat, Bye, Drain, Drained, Finished, Hello, Message, Welcome

WELCOME = Welcome(broker_term=1, run_dir="/runs/x", config=b"{}", spool="tcp://127.0.0.1:9", beat_s=60.0)


async def asked(*answers: Message, wait_s: float = 5.0) -> list[Message]:
    """`asyncrl drain` before a broker that answers so; what it heard."""
    hub = ZmqHub("tcp://127.0.0.1:0")
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


def test_it_waits_until_the_node_has_left() -> None:
    heard = asyncio.run(asked(Drained("rollout-1")))
    assert [type(message) for message in heard if not isinstance(message, Beat)][:2] == [Hello, Drain]
    assert all(isinstance(message, Bye | Beat) for message in heard[2:])


def test_what_the_broker_objects_to_is_said() -> None:
    with pytest.raises(RunFailed, match="there is no node rollout-1"):
        asyncio.run(asked(Drained("rollout-1", "there is no node rollout-1; those that can be drained are: none")))


def test_a_node_that_stays_is_not_waited_for_for_ever() -> None:
    with pytest.raises(RunFailed, match=r"rollout-1 was asked to leave and has not within 0\.1 s"):
        asyncio.run(asked(wait_s=0.1))


def test_a_run_that_ends_meanwhile_is_said_to_have() -> None:
    with pytest.raises(LinkError, match="the run ended before the node had left"):
        asyncio.run(asked(Finished("finished", "")))


def test_a_run_on_this_machine_stands_for_its_address(tmp_path) -> None:
    (tmp_path / "broker.address").write_text("tcp://127.0.0.1:5570\n")
    assert broker_of(str(tmp_path)) == broker_of("tcp://127.0.0.1:5570") == "tcp://127.0.0.1:5570"


def test_what_is_neither_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="neither a broker"):
        broker_of(str(tmp_path))
