"""
How fast weights move: one trainer and two rollouts, three processes, against a bare Gloo broadcast between the same.

    python bench/weights.py [MB ...]

Both are timed at the trainer, in turn, from the order that goes to the rollouts to the end of its own call. The peer
broadcasts one tensor of as many bytes in a group made by hand. ``publish`` also copies the model into the staging
buffers, ``broadcast`` does not.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch
import torch.distributed.distributed_c10d as c10d
from torch.distributed import FileStore

from asyncrl.actor.zmq_link import ZmqHub, ZmqLink
from asyncrl.broker.rendezvous import Rendezvous
from asyncrl.config import Weights
from asyncrl.messages import Bye, Member, Stop, StoreGet, StoreSet, StoreValue, Transfer
from asyncrl.weights.plan import Plan, TensorSpec
from asyncrl.weights.publish import Publisher
from asyncrl.weights.receive import Receiver

MIB = 1 << 20
SIZES_MB = (1, 16, 128, 512)
TENSORS = 32
MEMBERS = [Member(node, "1") for node in ("trainer", "rollout-1", "rollout-2")]
DEADLINE_S = 60.0
BARE = 0
"""Transfer of this epoch: join the bare broadcast."""

Timed = Callable[[], Awaitable[float]]


def plan(megabytes: int) -> Plan:
    shape = (megabytes * MIB // TENSORS // 4,)
    specs = [TensorSpec(name=f"layer.{i}", shape=shape, dtype="float32") for i in range(TENSORS)]
    return Plan(specs, Weights().bucket_bytes)


class Bare:
    """The least one can do: a group, a tensor, a broadcast."""

    def __init__(self, path: str, rank: int, num_bytes: int) -> None:
        options = c10d.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=DEADLINE_S)
        options._devices = [c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        self._group = c10d.ProcessGroupGloo(FileStore(path, len(MEMBERS)), rank, len(MEMBERS), options)
        self._tensor = torch.zeros(num_bytes, dtype=torch.uint8)

    def broadcast(self) -> None:
        options = c10d.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        self._group.broadcast([self._tensor], options).wait()


async def receive(address: str, rank: int, megabytes: int, path: str) -> None:
    """A rollout: obeys `Transfer` until `Stop`."""
    link = ZmqLink(address, MEMBERS[rank].node)
    receiver = Receiver(plan(megabytes), MEMBERS[rank], link.send, Weights())
    await link.send(Bye("ready"))
    bare = await asyncio.to_thread(Bare, path, rank, megabytes * MIB)

    async def obey(order: Transfer) -> None:
        await (asyncio.to_thread(bare.broadcast) if order.epoch == BARE else receiver.transfer(order))
        await link.send(Bye("done"))

    async with asyncio.TaskGroup() as tasks:
        async for message in link:
            match message:
                case StoreValue():
                    receiver.deliver(message)
                case Transfer():
                    tasks.create_task(obey(message))
                case Stop():
                    break
    await receiver.aclose()
    await link.aclose()


class Trainer:
    """The timed end, and the broker."""

    def __init__(self, megabytes: int) -> None:
        self.plan = plan(megabytes)
        self.hub = ZmqHub("tcp://127.0.0.1:0")
        self._link = ZmqLink(self.hub.address, "trainer")
        self._publisher = Publisher(self.plan, MEMBERS[0], self._link.send, Weights())
        self._model = [(spec.name, torch.randn(spec.shape)) for spec in self.plan.specs]
        self._said: asyncio.Queue[Bye] = asyncio.Queue()
        self._epoch = 1
        self._version = 0

    async def serve(self) -> None:
        """The broker's part."""
        rendezvous = Rendezvous()
        while True:
            peer, message = await self.hub.receive()
            match message:
                case StoreSet(group, key, value):
                    for waiting in rendezvous.set(group, key, value):
                        self.hub.send(waiting, StoreValue(group, key, value))
                case StoreGet(group, key):
                    if (found := rendezvous.get(group, key, peer)) is not None:
                        self.hub.send(peer, StoreValue(group, key, found))
                case Bye():
                    self._said.put_nowait(message)

    async def forward(self) -> None:
        async for message in self._link:
            if isinstance(message, StoreValue):
                self._publisher.deliver(message)

    async def connect(self, path: str) -> None:
        """Wait for the rollouts, and make both groups."""
        await self.heard()
        self._bare = await asyncio.to_thread(Bare, path, 0, self.plan.num_bytes)
        await self.publish()

    async def heard(self) -> None:
        """Both rollouts have said what they are to say."""
        for _ in MEMBERS[1:]:
            await self._said.get()

    def order(self, epoch: int) -> Transfer:
        order = Transfer(epoch, self._version, MEMBERS, True, DEADLINE_S)
        for member in MEMBERS[1:]:
            self.hub.send(member.node, order)
        return order

    async def publish(self) -> float:
        """Seconds to stage and send a version."""
        self._version += 1
        start_s = time.perf_counter()
        await asyncio.to_thread(self._publisher.stage, self._version, self._model)
        return await self._transfer(start_s)

    async def broadcast(self) -> float:
        """Seconds to send what is staged."""
        return await self._transfer(time.perf_counter())

    async def form_and_broadcast(self) -> float:
        """Seconds to send what is staged in a new group."""
        self._epoch += 1
        return await self._transfer(time.perf_counter())

    async def bare(self) -> float:
        """Seconds of the peer."""
        start_s = time.perf_counter()
        self.order(BARE)
        await asyncio.to_thread(self._bare.broadcast)
        end_s = time.perf_counter()
        await self.heard()
        return end_s - start_s

    async def _transfer(self, start_s: float) -> float:
        await self._publisher.transfer(self.order(self._epoch))
        end_s = time.perf_counter()
        await self.heard()
        return end_s - start_s

    async def aclose(self) -> None:
        await self._publisher.aclose()
        await self._link.aclose()
        await self.hub.aclose()


async def compare(trainer: Trainer, megabytes: int) -> None:
    """Print a line for each way to move ``megabytes``."""
    ways: dict[str, Timed] = {
        "publish": trainer.publish,
        "broadcast": trainer.broadcast,
        "form and broadcast": trainer.form_and_broadcast,
    }
    for name, ours in ways.items():
        rounds = max(5, min(25, 1024 // megabytes))
        pairs = [(await ours(), await trainer.bare()) for _ in range(rounds)]
        ours_s, peer_s = (median(seconds) for seconds in zip(*pairs, strict=True))
        rates = [megabytes * MIB / 1e9 / seconds for seconds in (ours_s, peer_s)]
        line = {
            "bench": "weights",
            "case": f"{name}, {megabytes} MB to 2 rollouts",
            "ours": round(rates[0], 3),
            "unit": "GB/s",
            "peer": "bare gloo broadcast",
            "peer_value": round(rates[1], 3),
            "ratio": round(rates[0] / rates[1], 2),
            "better": "higher",
        }
        print(json.dumps(line), flush=True)


async def measure(megabytes: int) -> None:
    """One size, with processes of its own."""
    async with AsyncExitStack() as stack:
        path = f"{stack.enter_context(tempfile.TemporaryDirectory())}/store"
        trainer = Trainer(megabytes)
        stack.push_async_callback(trainer.aclose)
        for task in (trainer.serve(), trainer.forward()):
            stack.callback(asyncio.create_task(task).cancel)
        children = []
        for rank in (1, 2):
            arguments = [str(Path(__file__)), "--receive", trainer.hub.address, str(rank), str(megabytes), path]
            children.append(await asyncio.create_subprocess_exec(sys.executable, *arguments, env=single_threaded()))
            stack.callback(lambda child: child.returncode is None and child.kill(), children[-1])
        await trainer.connect(path)
        await compare(trainer, megabytes)
        for member in MEMBERS[1:]:
            trainer.hub.send(member.node, Stop("done"))
        for child in children:
            await child.wait()


def single_threaded() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["--receive", address, rank, megabytes, path]:
            asyncio.run(receive(address, int(rank), int(megabytes), path))
        case sizes:
            for size in map(int, sizes or SIZES_MB):
                asyncio.run(measure(size))
