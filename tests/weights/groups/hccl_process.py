"""
Groups of three ranks over the fake HCCL, in a process of their own; prints the results as JSON.

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

from asyncrl.actor.memory import MemoryHub
from asyncrl.config.sections import Weights
from asyncrl.errors import TransferError
from asyncrl.weights.groups.deadline import Deadline
from asyncrl.weights.groups.device import backend_for, torch_device
from asyncrl.weights.groups.group import Group, form
from asyncrl.weights.groups.group_keeper import GroupKeeper
from asyncrl.weights.staging import Staging
from tests.weights.party import LAYOUT, TRAINER, Rendezvous, forward, member, same, tensors, transfer

NPU = torch_device("npu:0")
BACKEND = backend_for("auto", NPU.type)
SIZE = 3
MEETING_S = 3.0
"""Time in which the ranks that are there must have met, on a busy machine too."""


def receive(rank: int, store: HashStore) -> tuple[Group, bool]:
    """Take part in one publish; returns the group, and True if rank 0's tensors arrived."""
    deadline = Deadline(20.0)
    group = form(BACKEND, store, rank, SIZE, interface="127.0.0.1", deadline=deadline, device=NPU)
    staging = Staging(LAYOUT, NPU)
    for name, tensor in tensors(seed=rank).items():
        staging.tensors[name].copy_(tensor)
    for bucket in filter(len, staging.buckets):
        group.broadcast(bucket, 0, deadline)
    return group, same(staging.tensors, tensors(seed=0))


def exchange() -> dict[str, object]:
    """All three ranks join."""
    torch_npu: Any = importlib.import_module("torch_npu")

    store = HashStore()
    with ThreadPoolExecutor(SIZE) as ranks:
        groups, arrived = zip(*ranks.map(receive, range(SIZE), [store] * SIZE), strict=True)
    for group in groups:
        group.close()
    try:
        groups[0].broadcast(Staging(LAYOUT, NPU).buckets[0], 0, Deadline(1.0))
    except RuntimeError as error:
        closed = str(error)
    return {"arrived": arrived, "closed": closed, "made": torch_npu.MADE}


async def lack_one() -> list[str]:
    """Rank 2 never joins; returns the errors of the others."""
    hub = MemoryHub()
    links = [hub.connect(str(rank)) for rank in range(2)]

    keepers = [
        GroupKeeper(member(rank), link.send, Weights(backend="auto"), device=NPU) for rank, link in enumerate(links)
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
        facts["missing"] = asyncio.run(lack_one())
        facts["environment"] = [key for key in os.environ if "HCCL" in key]
        sys.stdout.write(json.dumps(facts))
