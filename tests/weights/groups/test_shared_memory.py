import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import FileStore, HashStore

from asyncrl.errors import TransferError
from asyncrl.weights.groups import group as shared_memory
from asyncrl.weights.groups.group import SLOT_BYTES, ProcessGroup, form, form_shared
from asyncrl.weights.groups.network_interface import Deadline
from tests.weights.party import LONG_S, SHORT_S


def groups(size: int) -> list[ProcessGroup]:
    store = HashStore()

    def join(rank: int) -> ProcessGroup:
        return form("shared", store, rank, size, interface="127.0.0.1", deadline=Deadline(LONG_S))

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(join, range(size)))


@pytest.fixture
def trio():
    formed = groups(3)
    yield formed
    for group in formed:
        group.close()


def in_threads(*calls: Callable[[], None]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for ended in [pool.submit(call) for call in calls]:
            ended.result()


@pytest.mark.parametrize("num_bytes", [1, 8, SLOT_BYTES, 2 * SLOT_BYTES + 5, 5 * SLOT_BYTES])
def test_all_ranks_get_every_byte_of_rank_0(trio, num_bytes):
    sent = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8)
    received = [sent, torch.zeros_like(sent), torch.zeros_like(sent)]
    in_threads(*(lambda g=g, t=t: g.broadcast(t, 0, Deadline(LONG_S)) for g, t in zip(trio, received, strict=True)))
    assert all(torch.equal(tensor, sent) for tensor in received)


def test_broadcasts_follow_each_other_in_order(trio):
    sent = [torch.full((3, 5), float(number)) for number in range(7)]
    received = [[torch.zeros(3, 5) for _ in sent] for _ in (1, 2)]

    def run(group: ProcessGroup, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            group.broadcast(tensor, 0, Deadline(LONG_S))

    in_threads(*(lambda g=g, t=t: run(g, t) for g, t in zip(trio, [sent, *received], strict=True)))
    assert all(torch.equal(a, b) for tensors in received for a, b in zip(sent, tensors, strict=True))


def test_the_memory_is_two_slots_however_large_the_tensor(trio):
    mapped = Path("/proc/self/maps").read_text().count("memfd:asyncrl-group")
    assert mapped == len(trio)
    sizes = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if "asyncrl-group" in line]
    for size in sizes:
        begin, end = (int(edge, 16) for edge in size.split("-"))
        assert end - begin == 2 * SLOT_BYTES


def test_a_peer_that_closes_ends_the_broadcasts_of_the_others(trio):
    trio[0].close()
    with pytest.raises(RuntimeError, match="rank 0 closed its connection"):
        trio[1].broadcast(torch.zeros(4), 0, Deadline(LONG_S))


def test_a_peer_that_stops_reading_is_waited_for_until_the_deadline(trio):
    with pytest.raises(RuntimeError, match=r"timed out: rank [12] gave no sign within"):
        trio[0].broadcast(torch.zeros(3 * SLOT_BYTES, dtype=torch.uint8), 0, Deadline(SHORT_S))


def test_an_expired_deadline_ends_a_wait_at_once(trio):
    deadline = Deadline(LONG_S)
    threading.Timer(0.05, deadline.expire).start()
    with pytest.raises(RuntimeError, match="timed out"):
        trio[1].broadcast(torch.zeros(4), 0, deadline)


def test_a_closed_group_says_so_and_leaves_no_memory() -> None:
    for group in groups(2):
        group.close()
        group.close()
        with pytest.raises(RuntimeError, match="closed"):
            group.broadcast(torch.zeros(4), 0, Deadline(LONG_S))
    assert "asyncrl-group" not in Path("/proc/self/maps").read_text()


def test_only_rank_0_sends(trio):
    with pytest.raises(ValueError, match="not from rank 1"):
        trio[1].broadcast(torch.zeros(4), 1, Deadline(LONG_S))


def test_a_rank_of_another_machine_is_refused_by_name() -> None:
    store = HashStore()
    store.set("shared memory", "00" * 16)
    with pytest.raises(TransferError, match=r"rank 1 shares no memory with rank 0: .* use 'gloo'"):
        form_shared(store, 1, 2, Deadline(LONG_S))


def test_a_stranger_who_connects_is_sent_away_and_gets_no_memory(monkeypatch):
    store, strangers = HashStore(), []
    publish = HashStore.set

    def intrude(self: HashStore, key: str, token: str) -> None:
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stranger.connect(shared_memory._address(bytes.fromhex(token)))
        stranger.sendall(bytes(20))
        strangers.append(stranger)
        publish(self, key, token)

    monkeypatch.setattr(HashStore, "set", intrude)

    async def both() -> list[ProcessGroup]:
        joining = (asyncio.to_thread(form_shared, store, rank, 2, Deadline(LONG_S)) for rank in (0, 1))
        return await asyncio.gather(*joining)

    formed = asyncio.run(both())
    assert strangers[0].recv(1) == b""
    strangers[0].close()
    for group in formed:
        group.close()


def test_a_killed_process_is_noticed_at_once(tmp_path):
    """A process that dies leaves its socket to the kernel, which closes it."""
    script = """
import os, signal, sys
from torch.distributed import FileStore
from asyncrl.weights.groups.network_interface import Deadline
from asyncrl.weights.groups.group import form_shared
form_shared(FileStore(sys.argv[1], 2), 1, 2, Deadline(60.0))
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = str(tmp_path / "store")
    with subprocess.Popen([sys.executable, "-c", script, path]):
        group = form_shared(FileStore(path, 2), 0, 2, Deadline(LONG_S))
        with pytest.raises(RuntimeError, match="rank 1"):
            group.broadcast(torch.zeros(4 * SLOT_BYTES, dtype=torch.uint8), 0, Deadline(LONG_S))
        group.close()
