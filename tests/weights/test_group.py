import asyncio

import pytest
import torch
from torch.distributed import HashStore

from asyncrl.errors import ConfigError
from asyncrl.weights.deadline import Deadline
from asyncrl.weights.group import Group, form

from .party import LONG_S, SHORT_S


def pair() -> list[Group]:
    store = HashStore()

    async def both() -> list[Group]:
        return await asyncio.gather(*(asyncio.to_thread(join, store, rank) for rank in (0, 1)))

    return asyncio.run(both())


def join(store: HashStore, rank: int) -> Group:
    return form("gloo", store, rank, 2, interface="127.0.0.1", deadline=Deadline(LONG_S))


def test_a_backend_we_do_not_have_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'hccl': only 'gloo' is supported"):
        form("hccl", HashStore(), 0, 1, interface="127.0.0.1", deadline=Deadline(1.0))


def test_a_broadcast_nobody_joins_ends_with_the_deadline() -> None:
    groups = pair()
    with pytest.raises(RuntimeError, match="Timed out"):
        groups[1].broadcast(torch.zeros(4), 0, Deadline(SHORT_S))
    for group in groups:
        group.close()


def test_a_closed_group_says_so() -> None:
    groups = pair()
    for group in groups:
        group.close()
        group.close()
    with pytest.raises(RuntimeError, match="closed"):
        groups[0].broadcast(torch.zeros(4), 0, Deadline(1.0))
