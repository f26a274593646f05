"""The worker extension without a worker; `test_workers` has real ones."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

pytest.importorskip("vllm")

from asyncrl.config.sections.weights import Weights
from asyncrl.errors import TransferError
from asyncrl.messages.weights import Member
from asyncrl.rollout.engines.vllm import reload
from asyncrl.rollout.engines.vllm.relay import ReceiverSetup
from asyncrl.rollout.engines.vllm.worker import WorkerExtension
from asyncrl.weights.shared import SharedTensors, shared_staging
from asyncrl.wire.addresses import LOOPBACK
from tests.weights.party import LAYOUT, tensors


class Worker(WorkerExtension):
    device = torch.device("cpu")
    vllm_config: Any = None
    model_runner = SimpleNamespace(get_model=type("Model", (), {"compute_logits": None}))


class Loaded:
    """In place of `Reload`: keeps what it is given."""

    def __init__(self, *_: Any) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.is_finished = False

    def add(self, tensors: Mapping[str, Tensor], *, are_borrowed: bool) -> None:
        assert not are_borrowed, "nothing overwrites them before `finish`"
        self.tensors |= tensors

    def finish(self) -> None:
        self.is_finished = True


def test_a_check_sets_the_mode_of_a_sampler_that_does_not_follow_the_engine() -> None:
    sampler = type("AscendSampler", (), {"__module__": "vllm_ascend.sample.sampler", "logprobs_mode": "raw_logprobs"})()
    worker = Worker()
    worker.model_runner = SimpleNamespace(sampler=sampler, get_model=Worker.model_runner.get_model)

    assert worker.asyncrl_check([]) == ""
    assert sampler.logprobs_mode == "processed_logprobs"


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Loaded]:
    """Versions that workers have loaded or begun to load."""
    made: list[Loaded] = []

    def make(*_: Any) -> Loaded:
        made.append(Loaded())
        return made[-1]

    monkeypatch.setattr(reload, "Reload", make)
    return made


def receiver_with(policy_version: int | None) -> Any:
    return SimpleNamespace(receiver=SimpleNamespace(policy_version=policy_version))


@pytest.mark.parametrize("received", [None, 2])
def test_a_version_that_was_not_received_is_not_swapped_in(received: int | None) -> None:
    worker = Worker()
    worker._asyncrl_receiver = receiver_with(received)

    with pytest.raises(TransferError, match=f"cannot swap in version 3: the newest received is {received}"):
        worker.asyncrl_swap(3)


def test_a_worker_that_never_connected_has_received_nothing() -> None:
    with pytest.raises(TransferError, match="the newest received is None"):
        Worker().asyncrl_swap(3)


def test_a_worker_beyond_the_ranks_of_its_node_receives_nothing() -> None:
    setup = ReceiverSetup(
        socket_path="", member=Member("rollout-0", "r", ranks=1), specs=[], weights=Weights(), interface=LOOPBACK
    )
    worker = Worker()
    worker.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(rank=1))
    worker._asyncrl_receiver = receiver_with(2)
    worker.asyncrl_connect(msgspec.json.encode(setup).decode())

    assert worker._asyncrl_receiver is None


def as_json(weights: Mapping[str, Tensor]) -> str:
    return msgspec.json.encode(SharedTensors.locate(weights)).decode()


def test_each_version_in_shared_memory_is_loaded_whole_and_bit_for_bit(loads: list[Loaded]) -> None:
    staging, worker = shared_staging(LAYOUT), Worker()
    for version in (1, 2):
        for name, tensor in tensors(version).items():
            staging.tensors[name].copy_(tensor)
        worker.asyncrl_swap_shared(as_json(staging.tensors))

        assert loads[-1].is_finished
        assert loads[-1].tensors.keys() == staging.tensors.keys()
        assert all(torch.equal(loads[-1].tensors[name], tensor) for name, tensor in tensors(version).items())
    assert len(loads) == 2


def test_memory_that_cannot_be_mapped_leaves_the_model_as_it_was(loads: list[Loaded]) -> None:
    gone = as_json(shared_staging(LAYOUT).tensors)

    with pytest.raises(TransferError, match=r"shared weights cannot be mapped: .*No such file"):
        Worker().asyncrl_swap_shared(gone)

    assert loads == []
