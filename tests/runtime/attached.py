"""A scripted broker and spool, and an engine that is attached to them."""

import asyncio
import tempfile

from asyncrl.config.config import to_json
from asyncrl.config.run_file import decode
from asyncrl.messages.codec import Message
from asyncrl.messages.rollout import Lease, Leased, Settled
from asyncrl.messages.session import Hello, Ready, Welcome
from asyncrl.messages.spool import Put, SpoolAddress, SpoolSet
from asyncrl.messages.trajectory import Prompt, Sampling
from asyncrl.messages.wire import CODEC
from asyncrl.runtime.attach import attach
from asyncrl.runtime.rollout import Host
from asyncrl.testing import FakeEngine
from asyncrl.wire.zmq_hub import ZmqHub

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


def only_spool(address: str) -> SpoolSet:
    return SpoolSet([SpoolAddress("spool", address)], "spool")


def free_address() -> str:
    return f"ipc://{tempfile.mkdtemp()}/broker"


class Run:
    """A scripted broker and its spool, and an engine attached to them."""

    def __init__(self, engine: FakeEngine, host: Host) -> None:
        self.engine, self.host = engine, host
        self.broker, self.spool = ZmqHub(free_address(), CODEC), ZmqHub(free_address(), CODEC)
        self.peer = ""
        self.attached = asyncio.create_task(attach(engine, self.broker.address, "server-1", slots=4, host=host))

    async def welcome(self) -> Hello:
        """Answer the next Hello, and wait until the node is ready."""
        self.peer, hello = await received(self.broker, Hello)
        spools = only_spool(self.spool.address)
        self.broker.send(self.peer, Welcome(1, "runs/x", to_json(CONFIG), spools, beat_s=0.05, run_id="r1"))
        await received(self.broker, Ready)
        assert isinstance(hello, Hello)
        return hello

    async def settle(self) -> Put:
        """Take what the node puts next, and settle it."""
        _, put = await received(self.spool, Put)
        assert isinstance(put, Put)
        items = [Leased(item.unit, item.lease_id) for item in put.items]
        is_unfinished = put.items[0].summary.finish_reason == "unfinished"
        self.broker.send(self.peer, Settled([], items) if is_unfinished else Settled(items))
        return put

    async def __aenter__(self) -> "Run":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.attached.cancel()
        await asyncio.wait([self.attached])
        await self.broker.aclose()
        await self.spool.aclose()
