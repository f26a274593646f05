"""Ranks that share a row, as threads of one process."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from asyncrl.trainer.packing.packed_attention import packed_attention
from asyncrl.trainer.packing.row import Row
from asyncrl.trainer.ranks.ranks import ALONE, SequenceGroup

CPU = torch.device("cpu")
SEQUENCES = [np.arange(5), np.array([0, 1, 5, 6, 7, 8]), np.arange(9, 12)]
"""The second shares its first two tokens with the first."""
WIDTH = 12


class Meeting:
    """Where threads exchange pieces."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60.0)
        self.pieces: list[Tensor] = [torch.empty(0)] * size


class InThread(SequenceGroup):
    def __init__(self, meeting: Meeting, index: int) -> None:
        super().__init__(len(meeting.pieces), index)
        self._meeting = meeting

    def exchange(self, pieces: Tensor) -> Tensor:
        self._meeting.pieces[self.index] = pieces
        self._meeting.barrier.wait()
        received = torch.stack([theirs[self.index] for theirs in self._meeting.pieces])
        self._meeting.barrier.wait()
        return received


def heads(number: int) -> Tensor:
    return torch.randn(1, number, WIDTH, 4, generator=torch.Generator().manual_seed(number))


def attention(parts: list[Tensor], group: SequenceGroup, window: int | None) -> Tensor:
    row = Row(SEQUENCES, CPU, group)
    query, key, value = parts
    return packed_attention(torch.nn.Identity(), query, key, value, None, sliding_window=window, row=row)[0]


def shared_attention(parts: list[Tensor], size: int, window: int | None) -> Tensor:
    meeting = Meeting(size)
    groups = [InThread(meeting, index) for index in range(size)]

    def of_rank(group: SequenceGroup) -> Tensor:
        return attention([part[:, :, group.own(WIDTH)] for part in parts], group, window)

    with ThreadPoolExecutor(size) as pool:
        return torch.cat([*pool.map(of_rank, groups)], 1)


@pytest.mark.parametrize("window", [None, 3], ids=["full", "sliding"])
@pytest.mark.parametrize(("size", "queries", "keys"), [(2, 4, 4), (2, 4, 2), (2, 4, 1), (4, 4, 2), (3, 6, 2)])
def test_ranks_that_share_a_row_attend_as_one_would(size: int, queries: int, keys: int, window: int | None) -> None:
    parts = [heads(number).requires_grad_() for number in (queries, keys, keys)]
    expected, found = attention(parts, ALONE, window), shared_attention(parts, size, window)
    push = torch.randn(expected.shape)

    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad((found * push).sum(), parts), torch.autograd.grad((expected * push).sum(), parts)
    )


def test_a_rank_that_shares_its_row_with_none_exchanges_nothing() -> None:
    part = heads(2)
    assert ALONE.to_heads(part) is part
    assert ALONE.to_positions(part) is part
    assert ALONE.gather(part, torch.arange(2), 2) is part


def test_a_rank_keeps_the_gradient_of_its_own_tokens() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)  # the other rank adds nothing
    try:
        own = torch.tensor([2.0, 3.0], requires_grad=True)
        whole = SequenceGroup(2, 0).gather(own, torch.tensor([3, 0]), 4)
        (whole * torch.tensor([1.0, 10.0, 100.0, 1000.0])).sum().backward()
    finally:
        dist.destroy_process_group()

    assert whole.tolist() == [3.0, 0.0, 0.0, 2.0]
    assert own.grad is not None
    assert own.grad.tolist() == [1000.0, 1.0]
