"""
One trainer and two rollouts: three processes that send each other weights, and a bare Gloo group between the same.

    Party (trainer and broker) ── Transfer ─▶ obey (rollout) ── Bye ─▶ Party

Everything is timed at the trainer, from the order that goes to the rollouts to the end of its own call.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch.distributed import FileStore  # type: ignore[attr-defined]  # it is public, and not exported

from asyncrl.actor.link import Hub
from asyncrl.actor.message import Message
from asyncrl.actor.zmq_link import ZmqHub, ZmqLink
from asyncrl.broker.versions.rendezvous import Rendezvous
from asyncrl.config.sections import Weights
from asyncrl.messages import CODEC, Bye, Member, Stop, StoreGet, StoreSet, StoreValue, Transfer, Transferred
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.contents.names import checkpoint_tensors
from asyncrl.weights.publish import Publisher
from asyncrl.weights.receive import Receiver

from . import shapes

MEMBERS = [Member(node, "1") for node in ("trainer", "rollout-1", "rollout-2")]
DEADLINE_S = 300.0
BARE, FORM_BARE = 0, -1
"""Transfers of these epochs: join the bare broadcast, or make another group for it."""


async def serve(hub: Hub, said: asyncio.Queue[Message]) -> None:
    """The broker's part: groups find together; what else comes goes into ``said``."""
    rendezvous = Rendezvous()
    while True:
        peer, message = await hub.receive()
        match message:
            case StoreSet(group, key, value):
                for waiting in rendezvous.set(group, key, value):
                    hub.send(waiting, StoreValue(group, key, value))
            case StoreGet(group, key):
                if (found := rendezvous.get(group, key, peer)) is not None:
                    hub.send(peer, StoreValue(group, key, found))
            case _:
                said.put_nowait(message)


class Bare:
    """The least one can do: a group, a tensor, a broadcast."""

    def __init__(self, folder: str, rank: int, num_bytes: int) -> None:
        self._folder, self._rank = folder, rank
        self._tensor = torch.zeros(num_bytes, dtype=torch.uint8)
        self._num_groups = 0

    def form(self) -> None:
        """A group of all, by a file."""
        gloo: Any = c10d.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timedelta(seconds=DEADLINE_S)
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        self._num_groups += 1
        store = FileStore(f"{self._folder}/{self._num_groups}", len(MEMBERS))
        self._group = gloo(store, self._rank, len(MEMBERS), options)

    def broadcast(self) -> None:
        """As many bytes as a version has, in one go."""
        options = c10d.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        self._group.broadcast([self._tensor], options).wait()


async def obey(address: str, rank: int, size: str, dtype: str, *, is_delta: bool, folder: str) -> None:
    """A rollout, until `Stop`."""
    link = ZmqLink(address, MEMBERS[rank].node, CODEC)
    config = Weights(delta=is_delta)
    layout = Layout(shapes.specs(size, dtype), config.bucket_bytes)
    receiver = Receiver(layout, MEMBERS[rank], link.send, config)
    bare = Bare(folder, rank, 0 if is_delta else layout.num_bytes)
    await link.send(Bye("ready"))

    async def take(order: Transfer) -> None:
        if order.transfer_group > 0:
            await receiver.transfer(order)
        else:
            await asyncio.to_thread(bare.form if order.transfer_group == FORM_BARE else bare.broadcast)
        await link.send(Bye("done"))

    async with asyncio.TaskGroup() as tasks:
        async for message in link:
            match message:
                case StoreValue():
                    receiver.deliver(message)
                case Transfer():
                    tasks.create_task(take(message))
                case Stop():
                    break
    await receiver.aclose()
    await link.aclose()


class Party:
    """The timed end, and the broker."""

    def __init__(self, model: Any, size: str, dtype: str, *, is_delta: bool, folder: str) -> None:
        config = Weights(delta=is_delta)
        self._model = model
        self._dtype: torch.dtype = getattr(torch, dtype)
        self.layout = Layout(shapes.specs(size, dtype), config.bucket_bytes)
        self.hub = ZmqHub("tcp://127.0.0.1:0", CODEC)
        self._link = ZmqLink(self.hub.address, "trainer", CODEC)
        self.publisher = Publisher(self.layout, MEMBERS[0], self._link.send, config)
        self._bare = Bare(folder, 0, 0 if is_delta else self.layout.num_bytes)
        self.said: asyncio.Queue[Message] = asyncio.Queue()
        """What rollouts said to us."""
        self._last_group = self._transfer_group = 1
        self._version = 0

    async def forward(self) -> None:
        """`StoreValue` to the publisher."""
        async for message in self._link:
            if isinstance(message, StoreValue):
                self.publisher.deliver(message)

    async def heard(self, count: int) -> None:
        """So many rollouts have said what they are to say."""
        for _ in range(count):
            await self.said.get()

    async def stage(self) -> float:
        """Seconds that the trainer stands still for a new version."""
        self._version += 1
        start_s = time.perf_counter()
        await asyncio.to_thread(self.publisher.stage, self._version, self._named_weights())
        return time.perf_counter() - start_s

    async def broadcast(self) -> float:
        """Seconds to send what is staged to both."""
        return (await self.send_to_both())[0]

    async def send_to_both(self) -> tuple[float, Transferred]:
        """Seconds, and what the trainer has to say of it."""
        return await self._send(self._transfer_group, MEMBERS)

    async def form_and_broadcast(self) -> float:
        """The same in a new group."""
        self._last_group = self._transfer_group = self._last_group + 1
        return await self.broadcast()

    async def catch_up(self) -> float:
        """Seconds to send what is staged to one that has just joined."""
        self._last_group += 1
        return (await self._send(self._last_group, MEMBERS[:2], keep=False))[0]

    async def bare(self, transfer_group: int) -> float:
        """Seconds of the peer: `BARE` or `FORM_BARE`."""
        start_s = time.perf_counter()
        self._order(transfer_group, MEMBERS, keep=True)
        await asyncio.to_thread(self._bare.form if transfer_group == FORM_BARE else self._bare.broadcast)
        seconds = time.perf_counter() - start_s
        await self.heard(len(MEMBERS) - 1)
        return seconds

    async def _send(
        self, transfer_group: int, members: list[Member], *, keep: bool = True
    ) -> tuple[float, Transferred]:
        start_s = time.perf_counter()
        done = await self.publisher.transfer(self._order(transfer_group, members, keep=keep))
        seconds = time.perf_counter() - start_s
        await self.heard(len(members) - 1)
        return seconds, done

    def _order(self, transfer_group: int, members: list[Member], *, keep: bool) -> Transfer:
        order = Transfer(transfer_group, self._version, members, keep, DEADLINE_S)
        for member in members[1:]:
            self.hub.send(member.node, order)
        return order

    def _named_weights(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, tensor.to(self._dtype)) for name, tensor in checkpoint_tensors(self._model))

    async def aclose(self) -> None:
        """Send the rollouts home first."""
        for member in MEMBERS[1:]:
            self.hub.send(member.node, Stop("done"))
        await self.publisher.aclose()
        await self._link.aclose()
        await self.hub.aclose()


@asynccontextmanager
async def party(model: Any, size: str, dtype: str, *, is_delta: bool = False) -> Any:
    """A trainer with ``model`` and two rollouts, that have had a first version."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="asyncrl-bench-"))
        trainer = Party(model, size, dtype, is_delta=is_delta, folder=folder)
        for task in (serve(trainer.hub, trainer.said), trainer.forward()):
            stack.callback(asyncio.create_task(task).cancel)
        children = []
        for rank in range(1, len(MEMBERS)):
            main = str(Path(__file__).parents[1] / "weights.py")
            options = ["--obey", trainer.hub.address, str(rank), size, dtype, "delta" if is_delta else "", folder]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            children.append(await asyncio.create_subprocess_exec(sys.executable, main, *options, env=environment))
            stack.callback(_end, children[-1])
        await trainer.heard(len(children))
        await trainer.stage()
        await trainer.broadcast()
        if not is_delta:
            await trainer.bare(FORM_BARE)
        yield trainer
        await trainer.aclose()
        for child in children:
            await child.wait()


def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        child.kill()
