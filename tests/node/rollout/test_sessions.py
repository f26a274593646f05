"""Sessions of a rollout: the broker is lost, joined again, and users come first."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from asyncrl.actor.sockets import zmq_link
from asyncrl.actor.sockets.zmq_hub import ZmqHub
from asyncrl.config.config import to_json
from asyncrl.messages.rollout import Offer
from asyncrl.messages.session import Beat, Hello, Ready, Welcome
from asyncrl.messages.wire import CODEC
from asyncrl.node.embedding.attach import attach
from asyncrl.node.embedding.host import Host
from asyncrl.testing import FakeEngine
from tests.node.rollout.attached import CONFIG, LEASE, Run, free_address, only_spool, received


def test_a_broker_that_falls_silent_is_joined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_link, "SILENT_TICKS", 2)

    async def scene(logs: list[MutableMapping[str, Any]]) -> None:
        broker, spool = ZmqHub(free_address(), CODEC), ZmqHub(free_address(), CODEC)
        address = broker.address
        async with asyncio.timeout(60.0):
            attached = asyncio.create_task(attach(FakeEngine(num_tokens=3), address, "server-1", slots=4))
            peer, _ = await received(broker, Hello)
            broker.send(peer, Welcome(1, "runs/x", to_json(CONFIG), only_spool(spool.address), beat_s=0.05))
            await received(broker, Ready)
            await broker.aclose()
            while "broker.lost" not in {entry["event"] for entry in logs}:
                await asyncio.sleep(0.01)
            assert not attached.done()
            broker = ZmqHub(address, CODEC)
            again, _ = await received(broker, Hello)
            assert again != peer
            attached.cancel()
            await asyncio.wait([attached])
            await broker.aclose()
            await spool.aclose()

    with capture_logs() as logs:
        asyncio.run(scene(logs))


def test_a_lost_broker_shows_in_the_health_and_its_return_too() -> None:
    engine, host = FakeEngine(num_tokens=3), Host()

    async def scene() -> None:
        async with asyncio.timeout(60.0), Run(engine, host) as run:
            await run.welcome()
            run.broker.forget(run.peer)  # As a broker that restarted.
            await run.welcome()
        assert host.health.last_error.startswith("LinkReset: ")

    asyncio.run(scene())


def test_users_in_hand_keep_the_node_from_offering_slots_and_from_decoding() -> None:
    engine, host = FakeEngine(num_tokens=3), Host(grace_s=0.0)

    async def scene() -> None:
        async with asyncio.timeout(60.0), Run(engine, host) as run:
            with host.user_request():
                await run.welcome()
                run.broker.send(run.peer, LEASE)
                messages = [(await run.broker.receive())[1] for _ in range(3)]
                assert {type(message) for message in messages} == {Beat}, (
                    "its leases are kept, and no more are asked for"
                )
                assert engine.requests == []
            await received(run.broker, Offer)
            await run.settle()

    asyncio.run(scene())
