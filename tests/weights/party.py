"""A trainer and its rollouts on one event loop, with a broker that only serves the rendezvous."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

import torch
from torch import Tensor

from asyncrl.config.sections.weights import Weights
from asyncrl.messages.codec import Message
from asyncrl.messages.session import StoreGet, StoreSet, StoreValue
from asyncrl.messages.weights import Member, Transfer
from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.publish import OnBucket, Publisher, Receiver
from asyncrl.wire.link import Hub, Link
from asyncrl.wire.memory import MemoryHub

BUCKET_BYTES = 64
SPECS = [
    TensorSpec(name="embed", shape=(5, 3), dtype="float32"),
    TensorSpec(name="norm", shape=(7,), dtype="bfloat16"),
    TensorSpec(name="scale", shape=(), dtype="float32"),
    TensorSpec(name="adapter", shape=(0, 4), dtype="float32"),
]
LAYOUT = Layout(SPECS, BUCKET_BYTES)
TRAINER = Member("trainer", "t1")
DEFAULTS = Weights()
SHORT_S = 0.3
LONG_S = 20.0


def tensors(seed: int) -> dict[str, Tensor]:
    """Random contents for `SPECS`."""
    generator = torch.Generator().manual_seed(seed)
    return {s.name: torch.randn(s.shape, generator=generator).to(getattr(torch, s.dtype)) for s in SPECS}


def member(rank: int) -> Member:
    """Rank 0 is the trainer."""
    return Member(f"rollout-{rank}", "r1") if rank else TRAINER


def transfer(
    transfer_group: int, policy_version: int, ranks: list[int], *, keep: bool = True, deadline_s: float = LONG_S
) -> Transfer:
    """A transfer from the trainer to ``ranks``."""
    return Transfer(transfer_group, policy_version, [member(rank) for rank in (0, *ranks)], keep, deadline_s)


class Rendezvous:
    """The broker's part in forming groups; collects other messages in ``others``."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._values: dict[tuple[str, str], bytes] = {}
        self._waiting: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.others: asyncio.Queue[tuple[str, Message]] = asyncio.Queue()

    async def run(self) -> None:
        while True:
            peer, message = await self._hub.receive()
            match message:
                case StoreSet(group, key, value):
                    self._values[group, key] = value
                    for waiting in self._waiting.pop((group, key), []):
                        self._hub.send(waiting, StoreValue(group, key, value))
                case StoreGet(group, key) if (group, key) in self._values:
                    self._hub.send(peer, StoreValue(group, key, self._values[group, key]))
                case StoreGet(group, key):
                    self._waiting[group, key].append(peer)
                case _:
                    self.others.put_nowait((peer, message))


async def move(order: Transfer, *ends: Publisher | Receiver) -> list[object]:
    """Run a transfer at all ends; returns each end's result or error."""
    return await asyncio.gather(*(end.transfer(order) for end in ends), return_exceptions=True)


class Deliverable(Protocol):
    def deliver(self, value: StoreValue, /) -> None: ...


async def forward(link: Link, end: Deliverable) -> None:
    """Deliver every `StoreValue`, as an actor does."""
    async for message in link:
        if isinstance(message, StoreValue):
            end.deliver(message)


@asynccontextmanager
async def party(
    *, receivers: int, layout: Layout = LAYOUT, config: Weights = DEFAULTS, on_bucket: OnBucket | None = None
) -> AsyncIterator[tuple[Publisher, list[Receiver]]]:
    """A publisher and receivers of ranks 1, 2 ... with links to a rendezvous."""
    hub = MemoryHub()
    links = [hub.connect(str(rank)) for rank in range(receivers + 1)]
    publisher = Publisher(LAYOUT, TRAINER, links[0].send, config)
    rollouts = [
        Receiver(layout, member(rank), links[rank].send, config, on_bucket=on_bucket)
        for rank in range(1, receivers + 1)
    ]
    ends: list[Publisher | Receiver] = [publisher, *rollouts]
    async with AsyncExitStack() as stack:
        tasks = [asyncio.create_task(Rendezvous(hub).run())]
        tasks += [asyncio.create_task(forward(link, end)) for link, end in zip(links, ends, strict=True)]
        for task in tasks:
            stack.callback(task.cancel)
        for end in ends:
            stack.push_async_callback(end.aclose)
        yield publisher, rollouts


def same(received: dict[str, Tensor], sent: dict[str, Tensor]) -> bool:
    """Equal bit for bit."""
    return received.keys() == sent.keys() and all(
        received[name].dtype == sent[name].dtype and torch.equal(received[name].cpu(), sent[name]) for name in sent
    )
