"""
Groups of three ranks on two devices over the fake HCCL, in a process of their own; prints the results as JSON.

Run it in the environment that `fake_npu.installed_at` returns.
"""

import asyncio
import importlib
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch._C._distributed_c10d import HashStore

from asyncrl.config.sections.weights import Weights
from asyncrl.errors import TransferError
from asyncrl.weights.groups.device import backend_for, current, staging_device, torch_device
from asyncrl.weights.groups.group import ProcessGroup, form
from asyncrl.weights.groups.group_keeper import GroupKeeper
from asyncrl.weights.groups.network_interface import Deadline
from asyncrl.weights.publish import Publisher, Receiver
from asyncrl.weights.staging import Staging
from asyncrl.wire.memory import MemoryHub
from tests.weights.party import LAYOUT, TRAINER, Rendezvous, forward, member, move, same, tensors, transfer

SIZE = 3
DEVICES = [torch_device(f"npu:{rank % 2}") for rank in range(SIZE)]
BACKEND = backend_for("auto", "npu")
MEETING_S = 3.0
"""Time in which the ranks that are there must have met, on a busy machine too."""


def receive(rank: int, store: HashStore) -> tuple[ProcessGroup, bool]:
    """Take part in one publish; returns the group, and True if rank 0's tensors arrived."""
    deadline, device = Deadline(20.0), DEVICES[rank]
    group = form(BACKEND, store, rank, SIZE, interface="127.0.0.1", deadline=deadline, device=device)
    staging = Staging(LAYOUT, device)
    for name, tensor in tensors(seed=rank).items():
        staging.tensors[name].copy_(tensor)
    for bucket in filter(len, staging.buckets):
        group.broadcast(bucket, 0, deadline)
    return group, same(staging.tensors, tensors(seed=0))


def exchange() -> dict[str, object]:
    """All three ranks join."""
    store = HashStore()
    with ThreadPoolExecutor(SIZE) as ranks:
        groups, arrived = zip(*ranks.map(receive, range(SIZE), [store] * SIZE), strict=True)
    for group in groups:
        group.close()
    try:
        groups[0].broadcast(Staging(LAYOUT, DEVICES[0]).buckets[0], 0, Deadline(1.0))
    except RuntimeError as error:
        closed = str(error)
    return {"arrived": arrived, "closed": closed, "made": list(torch_npu().MADE)}


async def publish(config: Weights) -> dict[str, object]:
    """A trainer on ``npu:0`` and a rollout on ``npu:1``, each with two buckets on its own device."""
    hub = MemoryHub()
    links = [hub.connect(str(rank)) for rank in range(2)]
    own, theirs = (staging_device("hccl", device) for device in DEVICES[:2])
    with current(own):
        publisher = Publisher(LAYOUT, TRAINER, links[0].send, config, device=own)
    pinned = len(torch_npu().PINNED)
    with current(theirs):
        receiver = Receiver(LAYOUT, member(1), links[1].send, config, device=theirs)
    pinned = sum(torch_npu().PINNED[pinned:])
    tasks = [asyncio.create_task(Rendezvous(hub).run())]
    ends: list[Publisher | Receiver] = [publisher, receiver]
    tasks += [asyncio.create_task(forward(link, end)) for link, end in zip(links, ends, strict=True)]
    for version in (1, 2):
        publisher.stage(version, tensors(seed=version).items())
        problems = [str(one) for one in await move(transfer(1, version, [1]), publisher, receiver)]
        assert receiver.policy_version == version, problems
    arrived = same(receiver.weights(), tensors(seed=2))
    on = [str(tensor.device) for tensor in receiver.weights().values()]
    for end in (publisher, receiver):
        await end.aclose()
    for task in tasks:
        task.cancel()
    return {"arrived": arrived, "on": sorted(set(on)), "pinned": pinned}


def torch_npu() -> Any:
    return importlib.import_module("torch_npu")


async def lack_one() -> list[str]:
    """Rank 2 never joins; returns the errors of the others."""
    hub = MemoryHub()
    links = [hub.connect(str(rank)) for rank in range(2)]

    keepers = [
        GroupKeeper(member(rank), link.send, Weights(backend="auto"), device=device)
        for rank, (link, device) in enumerate(zip(links, DEVICES, strict=False))
    ]
    tasks = [asyncio.create_task(Rendezvous(hub).run())]
    tasks += [asyncio.create_task(forward(link, keeper)) for link, keeper in zip(links, keepers, strict=True)]
    order = transfer(1, 1, [1, 2], deadline_s=MEETING_S)
    assert order.members[0] == TRAINER
    runs = (keeper.run(order, rank, lambda group, deadline: None) for rank, keeper in enumerate(keepers))
    errors = await asyncio.gather(*runs, return_exceptions=True)
    for keeper in keepers:
        await keeper.aclose()
    for task in tasks:
        task.cancel()
    assert all(isinstance(error, TransferError) for error in errors), errors
    return [str(error) for error in errors]


if __name__ == "__main__":
    try:
        facts = exchange()
    except RuntimeError as error:
        sys.stdout.write(json.dumps({"failed": str(error)}))
    else:
        facts["published"] = asyncio.run(publish(Weights(backend="hccl")))
        facts["changed"] = asyncio.run(publish(Weights(backend="hccl", delta=True)))
        facts["missing"] = asyncio.run(lack_one())
        facts["strays"] = torch_npu().STRAYS
        facts["environment"] = [key for key in os.environ if "HCCL" in key]
        sys.stdout.write(json.dumps(facts))
