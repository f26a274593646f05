import asyncio
import json
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from asyncrl.errors import ConfigError, TransferError
from asyncrl.weights.groups.group import GLOO_TIMEOUT_FACTOR, GlooGroup, ProcessGroup, form
from asyncrl.weights.groups.network_interface import Deadline, interface_addresses, settings
from tests.weights.groups.fake_npu import installed_at
from tests.weights.party import LAYOUT, LONG_S, SHORT_S

ROOT = Path(__file__).parents[3]


def pair(store: HashStore | None = None, interface: str = "127.0.0.1") -> list[ProcessGroup]:
    store = store or HashStore()

    async def both() -> list[ProcessGroup]:
        return await asyncio.gather(*(asyncio.to_thread(join, store, rank, interface) for rank in (0, 1)))

    return asyncio.run(both())


def join(store: HashStore, rank: int, interface: str) -> ProcessGroup:
    return form("gloo", store, rank, 2, interface=interface, deadline=Deadline(LONG_S))


@pytest.mark.parametrize("interface", ["127.0.0.1", "::1"])
def test_gloo_broadcasts_over_both_versions_of_ip(interface: str) -> None:
    if all(address != interface for _, address in interface_addresses()):
        pytest.skip(f"this machine does not have {interface}")
    store = HashStore()
    groups = pair(store, interface)
    received = torch.zeros(4)

    async def broadcast() -> None:
        ends = zip(groups, (torch.arange(4.0), received), strict=True)
        await asyncio.gather(*(asyncio.to_thread(group.broadcast, end, 0, Deadline(LONG_S)) for group, end in ends))

    asyncio.run(broadcast())
    for group in groups:
        group.close()
    assert received.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("backend", ["nccl", "hccl"])
def test_a_backend_that_this_torch_does_not_have_is_refused_by_name(backend: str) -> None:
    if backend == "nccl" and torch.distributed.is_nccl_available():
        pytest.skip("this torch has it")
    with pytest.raises(ConfigError, match=f"'{backend}', which torch .* does not support; it supports gloo"):
        form(backend, HashStore(), 0, 1, interface="127.0.0.1", deadline=Deadline(1.0))


def test_a_broadcast_nobody_joins_ends_with_the_deadline() -> None:
    groups = pair()
    with pytest.raises(RuntimeError, match="Timed out"):
        groups[1].broadcast(torch.zeros(4), 0, Deadline(SHORT_S))
    for group in groups:
        group.close()


class Halfway:
    """A library that is in the middle of a message for ever, as gloo is when its connection breaks there."""

    def __init__(self) -> None:
        self.ends, self.is_aborted = threading.Event(), threading.Event()

    def broadcast(self, *_: object) -> "Halfway":
        return self

    def abort(self) -> None:
        self.is_aborted.set()

    def wait(self, timeout: timedelta | None = None) -> None:
        if not self.ends.wait(timeout.total_seconds() if timeout else None):
            raise RuntimeError("Operation timed out!")

    def is_completed(self) -> bool:
        return self.ends.is_set()


def test_a_broadcast_in_the_middle_of_a_message_is_left_when_the_deadline_is_over() -> None:
    """It is closed when the library has left it, too; neither is waited for."""
    library: Any = Halfway()
    deadline = Deadline(LONG_S)
    deadline.expire()
    group = GlooGroup(library)
    with pytest.raises(RuntimeError, match="Timed out: a broadcast did not finish"):
        group.broadcast(torch.zeros(4), 0, deadline)
    group.close()
    assert not library.is_aborted.is_set()

    library.ends.set()
    assert library.is_aborted.wait(LONG_S)


def test_a_rank_that_dies_after_the_rendezvous_is_waited_for_until_the_deadline_and_not_five_times_as_long() -> None:
    """Ports decide which rank of gloo connects to which: of several pairs some wait, and some are refused."""

    def left_alone() -> float:
        store = HashStore()
        for group in pair(store):
            group.close()
        deadline = Deadline(1.0)
        with pytest.raises(RuntimeError, match="connectFullMesh failed"):
            form("gloo", store, 0, 2, interface="127.0.0.1", deadline=deadline)
        return deadline.elapsed_s()

    async def several() -> list[float]:
        return await asyncio.gather(*(asyncio.to_thread(left_alone) for _ in range(6)))

    assert max(asyncio.run(several())) < GLOO_TIMEOUT_FACTOR - 1.0


def test_a_closed_group_says_so() -> None:
    groups = pair()
    for group in groups:
        group.close()
        group.close()
    with pytest.raises(RuntimeError, match="closed"):
        groups[0].broadcast(torch.zeros(4), 0, Deadline(1.0))


class Stuck:
    """A library whose broadcasts never end; counts aborts."""

    def __init__(self, *_: object) -> None:
        self.aborted = 0

    def broadcast(self, *_: object) -> "Stuck":
        return self

    def is_completed(self) -> bool:
        return False

    def abort(self) -> None:
        self.aborted += 1


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Stuck:
    library = Stuck()
    plugin = torch.distributed.Backend._BackendPlugin(lambda *_: library, True)
    monkeypatch.setitem(torch.distributed.Backend._plugins, "HCCL", plugin)
    return library


def test_a_device_library_that_hangs_is_aborted_at_the_deadline(stuck: Stuck) -> None:
    with pytest.raises(RuntimeError, match=r"a broadcast did not finish within 0\.3 s"):
        form("hccl", HashStore(), 0, 1, interface="127.0.0.1", deadline=Deadline(SHORT_S))
    assert stuck.aborted == 1


def test_ranks_with_different_libraries_fail_at_once_and_not_at_the_deadline(stuck: Stuck) -> None:
    store = HashStore()
    store.set("rank/1", "gloo 127.0.0.1")
    with pytest.raises(TransferError, match="rank 1 uses gloo, rank 0 uses hccl: set"):
        form("hccl", store, 0, 2, interface="127.0.0.1", deadline=Deadline(LONG_S))


def test_a_rank_that_only_its_own_machine_reaches_is_named_and_not_waited_for() -> None:
    store = HashStore()
    store.set("rank/1", "gloo 203.0.113.9")
    expected = r"rank 1, at 203\.0\.113\.9, cannot connect to rank 0, at 127\.0\.0\.1: only its own machine reaches"
    with pytest.raises(TransferError, match=expected):
        form("gloo", store, 0, 2, interface="127.0.0.1", deadline=Deadline(LONG_S))


def three_ranks(folder: Path, failing: str = "whole") -> dict[str, Any]:
    environment = installed_at(folder, failing)
    command = [sys.executable, "-m", "tests.weights.groups.hccl_process"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # torch 2.10's Gloo prints before it


@pytest.mark.slow("real processes that import torch")
def test_a_layout_arrives_over_a_plugged_in_library(tmp_path: Path) -> None:
    facts = three_ranks(tmp_path)
    assert facts["arrived"] == [True] * 3
    assert facts["closed"] == "the group is closed"

    # The group is outside the default group, its variables were set while it was formed, and close() aborted it.
    variables = settings("hccl", "127.0.0.1", 30.0, {})
    assert facts["made"] == [{"ranks": [], "environment": variables, "aborted": True}] * 3
    assert facts["environment"] == []

    # Trainer and rollout send through their own devices, each current in the threads that use it, and stage on the
    # host, in page-locked memory.
    for case in ("published", "changed"):
        assert facts[case] == {"arrived": True, "on": ["cpu"], "pinned": LAYOUT.num_bytes}
    assert facts["strays"] == []

    # The ranks that joined name the missing one, before the library, which has no deadline, connects.
    assert len(facts["missing"]) == 2
    assert all("rollout-2 (rank 2) did not join the rendezvous within 3 s" in error for error in facts["missing"])


@pytest.mark.slow("real processes that import torch")
def test_a_library_that_sends_nothing_forms_no_group(tmp_path: Path) -> None:
    failed = "hccl finished a broadcast without sending a byte: check its installation"
    assert three_ranks(tmp_path, "idle") == {"failed": failed}
