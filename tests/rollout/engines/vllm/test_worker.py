"""The worker extension without a worker; `test_workers` has real ones."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from asyncrl.errors import TransferError
from asyncrl.rollout.engines.vllm.worker import WorkerExtension


class Worker(WorkerExtension):
    device = torch.device("cpu")


def receiver_with(policy_version: int | None) -> Any:
    return SimpleNamespace(receiver=SimpleNamespace(policy_version=policy_version))


@pytest.mark.parametrize("received", [None, 2])
def test_a_version_that_was_not_received_is_not_swapped_in(received: int | None) -> None:
    worker = Worker()
    worker._asyncrl_receiver = receiver_with(received)

    with pytest.raises(TransferError, match=f"cannot swap in policy_version 3: the newest received is {received}"):
        worker.asyncrl_swap(3)


def test_a_worker_that_never_connected_has_received_nothing() -> None:
    with pytest.raises(TransferError, match="the newest received is None"):
        Worker().asyncrl_swap(3)


def test_weights_are_staged_on_the_workers_own_device_if_the_backend_allows() -> None:
    assert Worker()._asyncrl_staging_device("gloo") == torch.device("cpu")
