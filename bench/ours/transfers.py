"""
Weight transfers between one trainer and two rollout processes, and a bare Gloo group between the same processes.

    TrainerSide (trainer and broker) ── Transfer ─▶ run_rollout ── Bye ─▶ TrainerSide

All times are measured at the trainer, from the order to the rollouts to the end of the trainer's own call.
"""

import asyncio
import os
import sys
import tempfile
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
from torch.distributed import FileStore  # type: ignore[attr-defined]  # public, but not exported

from asyncrl.config.sections.weights import Weights
from asyncrl.messages.codec import Message
from asyncrl.messages.session import Bye, Stop, StoreGet, StoreSet, StoreValue
from asyncrl.messages.weights import Member, Transfer, Transferred
from asyncrl.messages.wire import CODEC
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.contents.names import checkpoint_tensors
from asyncrl.weights.groups.rendezvous import Rendezvous
from asyncrl.weights.publish import Publisher, Receiver
from asyncrl.wire.link import Hub
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.wire.zmq_link import ZmqLink

from . import shapes

MEMBERS = [Member(node, "1") for node in ("trainer", "rollout-1", "rollout-2")]
DEADLINE_S = 300.0
BARE, FORM_BARE = 0, -1
"""Special transfer groups: run the bare broadcast, or form a new group for it."""


async def serve(hub: Hub, received: asyncio.Queue[Message]) -> None:
    """Serve rendezvous requests like the broker; put all other messages into ``received``."""
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
                received.put_nowait(message)


class Bare:
    """Bare Gloo transfer: one group, one tensor, one broadcast."""

    def __init__(self, folder: str, rank: int, num_bytes: int) -> None:
        self._folder, self._rank = folder, rank
        self._tensor = torch.zeros(num_bytes, dtype=torch.uint8)
        self._num_groups = 0

    def form(self) -> None:
        """Form a group of all processes through a shared file."""
        gloo: Any = c10d.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timedelta(seconds=DEADLINE_S)
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        self._num_groups += 1
        store = FileStore(f"{self._folder}/{self._num_groups}", len(MEMBERS))
        self._group = gloo(store, self._rank, len(MEMBERS), options)

    def broadcast(self) -> None:
        """Broadcast one tensor with as many bytes as a version."""
        options = c10d.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        self._group.broadcast([self._tensor], options).wait()


async def run_rollout(address: str, rank: int, size: str, dtype: str, *, is_delta: bool, folder: str) -> None:
    """Run a rollout until it receives `Stop`."""
    link = ZmqLink(address, MEMBERS[rank].node, CODEC)
    config = Weights(delta=is_delta)
    layout = Layout(shapes.specs(size, dtype), config.bucket_bytes)
    receiver = Receiver(layout, MEMBERS[rank], link.send, config)
    bare = Bare(folder, rank, 0 if is_delta else layout.num_bytes)
    await link.send(Bye("ready"))

    async def transfer(order: Transfer) -> None:
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
                    tasks.create_task(transfer(message))
                case Stop():
                    break
    await receiver.aclose()
    await link.aclose()


class TrainerSide:
    """Trainer and broker; measures transfers to the rollouts."""

    def __init__(self, model: Any, size: str, dtype: str, *, is_delta: bool, folder: str) -> None:
        config = Weights(delta=is_delta)
        self._model = model
        self._dtype: torch.dtype = getattr(torch, dtype)
        self.layout = Layout(shapes.specs(size, dtype), config.bucket_bytes)
        self.hub = ZmqHub(f"ipc://{tempfile.mkdtemp()}/hub", CODEC)
        self._link = ZmqLink(self.hub.address, "trainer", CODEC)
        self.publisher = Publisher(self.layout, MEMBERS[0], self._link.send, config)
        self._bare = Bare(folder, 0, 0 if is_delta else self.layout.num_bytes)
        self.received: asyncio.Queue[Message] = asyncio.Queue()
        """Messages from the rollouts."""
        self._last_group = self._transfer_group = 1
        self._version = 0

    async def forward(self) -> None:
        """Pass `StoreValue` messages to the publisher."""
        async for message in self._link:
            if isinstance(message, StoreValue):
                self.publisher.deliver(message)

    async def wait_for_replies(self, count: int) -> None:
        """Wait for ``count`` messages from the rollouts."""
        for _ in range(count):
            await self.received.get()

    async def stage(self) -> float:
        """Seconds the trainer is blocked to stage a new version."""
        self._version += 1
        start_s = time.perf_counter()
        await asyncio.to_thread(self.publisher.stage, self._version, self._named_weights())
        return time.perf_counter() - start_s

    async def broadcast(self) -> float:
        """Seconds to send the staged version to both rollouts."""
        return (await self.send_to_both())[0]

    async def send_to_both(self) -> tuple[float, Transferred]:
        """Send the staged version to both rollouts. Returns seconds and the trainer's `Transferred`."""
        return await self._send(self._transfer_group, MEMBERS)

    async def form_and_broadcast(self) -> float:
        """Seconds to form a new group and send the staged version."""
        self._last_group = self._transfer_group = self._last_group + 1
        return await self.broadcast()

    async def catch_up(self) -> float:
        """Seconds to send the staged version to one rollout that has just joined."""
        self._last_group += 1
        return (await self._send(self._last_group, MEMBERS[:2], keep=False))[0]

    async def bare(self, transfer_group: int) -> float:
        """Seconds of the bare broadcast (`BARE`) or of forming its group (`FORM_BARE`)."""
        start_s = time.perf_counter()
        self._order(transfer_group, MEMBERS, keep=True)
        await asyncio.to_thread(self._bare.form if transfer_group == FORM_BARE else self._bare.broadcast)
        seconds = time.perf_counter() - start_s
        await self.wait_for_replies(len(MEMBERS) - 1)
        return seconds

    async def _send(
        self, transfer_group: int, members: list[Member], *, keep: bool = True
    ) -> tuple[float, Transferred]:
        start_s = time.perf_counter()
        done = await self.publisher.transfer(self._order(transfer_group, members, keep=keep))
        seconds = time.perf_counter() - start_s
        await self.wait_for_replies(len(members) - 1)
        return seconds, done

    def _order(self, transfer_group: int, members: list[Member], *, keep: bool) -> Transfer:
        order = Transfer(transfer_group, self._version, members, keep, DEADLINE_S)
        for member in members[1:]:
            self.hub.send(member.node, order)
        return order

    def _named_weights(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, tensor.to(self._dtype)) for name, tensor in checkpoint_tensors(self._model))

    async def aclose(self) -> None:
        """Stop the rollouts, then close all links."""
        for member in MEMBERS[1:]:
            self.hub.send(member.node, Stop("done"))
        await self.publisher.aclose()
        await self._link.aclose()
        await self.hub.aclose()


@asynccontextmanager
async def trainer_with_rollouts(model: Any, size: str, dtype: str, *, is_delta: bool = False) -> Any:
    """Start a trainer with ``model`` and two rollouts, and send them a first version."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="asyncrl-bench-"))
        trainer = TrainerSide(model, size, dtype, is_delta=is_delta, folder=folder)
        for task in (serve(trainer.hub, trainer.received), trainer.forward()):
            stack.callback(asyncio.create_task(task).cancel)
        children = []
        for rank in range(1, len(MEMBERS)):
            main = str(Path(__file__).parents[1] / "weights.py")
            options = ["--rollout", trainer.hub.address, str(rank), size, dtype, "delta" if is_delta else "", folder]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            children.append(await asyncio.create_subprocess_exec(sys.executable, main, *options, env=environment))
            stack.callback(_end, children[-1])
        await trainer.wait_for_replies(len(children))
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
