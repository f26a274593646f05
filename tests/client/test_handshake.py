"""A node joins its broker, is refused, or fails in one sentence if no broker answers."""

import asyncio

import pytest

from asyncrl.actor import zmq_link
from asyncrl.actor.memory import MemoryHub
from asyncrl.actor.zmq_link import ZmqHub
from asyncrl.client.handshake import identity, join, leave, send_beats, shake_hands, spool_link
from asyncrl.errors import LinkClosed, LinkError, LinkRefused, LinkReset
from asyncrl.messages import CODEC, PROTOCOL, Beat, Bye, Hello, Offer, Progress, Put, Reject, Stop, Welcome

DEADLINE_S = 30.0
WELCOME = Welcome(broker_term=3, run_dir="runs/x", config=b"{}", spool="memory", beat_s=0.5)


def test_a_node_says_hello_and_is_welcomed() -> None:
    who = identity("rollout", "rollout-0")

    async def scene() -> None:
        hub = ZmqHub("tcp://127.0.0.1:0", CODEC)
        joining = asyncio.create_task(join(hub.address, who, DEADLINE_S))
        assert await hub.receive() == (who.peer, Hello(PROTOCOL, "rollout", "rollout-0", who.incarnation))
        hub.send(who.peer, WELCOME)
        link, welcome = await joining
        assert welcome == WELCOME
        await link.send(Offer(1))
        assert await hub.receive() == (who.peer, Offer(1))
        await link.aclose()
        await hub.aclose()

    asyncio.run(scene())


def test_a_refusal_is_raised_with_the_reason_of_the_broker() -> None:
    who = identity("rollout", "rollout-0")

    async def scene() -> None:
        hub = ZmqHub("tcp://127.0.0.1:0", CODEC)
        joining = asyncio.create_task(join(hub.address, who, DEADLINE_S))
        await hub.receive()
        hub.send(who.peer, Reject("this broker speaks protocol 2, you speak 1"))
        hub.forget(who.peer)
        with pytest.raises(LinkRefused, match="protocol 2, you speak 1"):
            await joining
        await hub.aclose()

    asyncio.run(scene())


def test_joining_without_a_broker_fails_in_one_sentence_within_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_link, "LINGER_MS", 1)

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        called_s = loop.time()
        with pytest.raises(LinkError) as raised:
            await join("tcp://127.0.0.1:9", identity("reward", "reward-0"), 0.05)
        assert str(raised.value) == (
            "no broker answered at tcp://127.0.0.1:9 within 0.05 s: is it running, and is the address right?"
        )
        assert loop.time() - called_s < DEADLINE_S

    asyncio.run(scene())


def test_messages_before_the_welcome_are_skipped() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = hub.connect("supervisor-0.1")
        hub.send("supervisor-0.1", Progress(1, 2, {}))
        hub.send("supervisor-0.1", WELCOME)
        assert await shake_hands(link, identity("supervisor", "supervisor-0")) == WELCOME

    asyncio.run(scene())


def test_two_starts_of_a_node_are_two_peers() -> None:
    starts = [identity("rollout", "rollout-0") for _ in range(2)]
    assert starts[0].peer != starts[1].peer
    assert all(start.peer.startswith("rollout-0.") for start in starts)


def test_the_spool_link_uses_the_address_of_the_welcome() -> None:
    who = identity("rollout", "rollout-0")

    async def scene() -> None:
        spool = ZmqHub("tcp://127.0.0.1:0", CODEC)
        link = spool_link(Welcome(1, "runs/x", b"{}", spool.address, 0.5), who)
        await link.send(Put("rollout-0", who.incarnation, []))
        assert await spool.receive() == (who.peer, Put("rollout-0", who.incarnation, []))
        await link.aclose()
        await spool.aclose()

    asyncio.run(scene())


def test_beats_continue_until_the_link_closes_and_report_their_lag() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = hub.connect("a.1")
        lags_s: list[float] = []

        def sign(lag_s: float) -> Beat:
            lags_s.append(lag_s)
            return Beat(lag_s)

        beating = asyncio.create_task(send_beats(link, 0.0, sign))
        heard = [await hub.receive() for _ in range(3)]
        assert heard == [("a.1", Beat(lag_s)) for lag_s in lags_s[:3]]
        assert all(lag_s >= 0 for lag_s in lags_s)
        await link.aclose()
        with pytest.raises(LinkClosed):
            await beating

    asyncio.run(scene())


def test_leaving_sends_bye_and_closes_the_link() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = hub.connect("a.1")
        await leave(link, "done")
        assert await hub.receive() == ("a.1", Bye("done"))
        with pytest.raises(LinkClosed):
            await link.send(Offer(1))

    asyncio.run(scene())


def test_leaving_a_broker_that_is_gone_only_closes_the_link() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = hub.connect("a.1")
        hub.send("a.1", Stop("over"))
        hub.forget("a.1")
        await leave(link, "done")
        assert await link.receive() == Stop("over")
        with pytest.raises(LinkReset):
            await link.receive()

    asyncio.run(scene())
