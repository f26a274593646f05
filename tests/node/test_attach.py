"""An existing engine is attached to a broker over real sockets, and detached again."""

import asyncio
import threading

import msgspec

from asyncrl.actor.message import Message
from asyncrl.actor.zmq_link import ZmqHub
from asyncrl.config.run_file import decode
from asyncrl.config.sections import to_json
from asyncrl.messages import (
    CODEC,
    PROTOCOL,
    Bye,
    Hello,
    Lease,
    Prompt,
    Put,
    Ready,
    Sampling,
    Trajectory,
    Welcome,
)
from asyncrl.node.attach import attach
from asyncrl.testing import FakeEngine
from asyncrl.weights.contents.layout import Layout

CONFIG = decode({"model": {"path": "model"}, "data": {"train": "train.parquet"}})
LEASE = Lease(
    lease_id=1,
    group_id=0,
    indices=[0],
    split="train",
    prompt=Prompt(text="how many?"),
    sampling=Sampling(max_tokens=8),
    seed=0,
    max_prompt_tokens=64,
    expires_in_s=60.0,
)


async def received(hub: ZmqHub, kind: type[Message]) -> tuple[str, Message]:
    """The next message of a kind; earlier messages are skipped."""
    while True:
        peer, message = await hub.receive()
        if isinstance(message, kind):
            return peer, message


def test_a_host_rolls_out_with_its_own_engine_and_leaves_when_cancelled() -> None:
    engine = FakeEngine(num_tokens=3)

    async def scene() -> list[str]:
        broker, spool = ZmqHub("tcp://127.0.0.1:0", CODEC), ZmqHub("tcp://127.0.0.1:0", CODEC)
        try:
            async with asyncio.timeout(60.0):
                attached = asyncio.create_task(attach(engine, broker.address, "server-1", slots=4))
                peer, hello = await received(broker, Hello)
                assert isinstance(hello, Hello)
                assert (hello.protocol, hello.role, hello.node) == (PROTOCOL, "rollout", "server-1")
                broker.send(peer, Welcome(1, "runs/x", to_json(CONFIG), spool.address, beat_s=0.05))
                _, ready = await received(broker, Ready)
                assert ready == Ready(Layout(engine.specs(), CONFIG.weights.bucket_bytes).hash)
                broker.send(peer, LEASE)
                _, put = await received(spool, Put)
                assert isinstance(put, Put)
                attached.cancel()
                await asyncio.wait([attached])
                await received(broker, Bye)
                return [msgspec.msgpack.decode(item.payload, type=Trajectory).node for item in put.items]
        finally:
            await broker.aclose()
            await spool.aclose()

    threads = set(threading.enumerate())
    assert asyncio.run(scene()) == ["server-1"]
    assert set(threading.enumerate()) <= threads
