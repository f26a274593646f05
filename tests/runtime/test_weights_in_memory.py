"""Weights that stay in one process: copied once, and handed over by reference."""

import asyncio

import pytest
import torch

from asyncrl.errors import TransferError
from asyncrl.messages.weights import Member, Transfer
from asyncrl.runtime.in_memory import MemoryPublisher, MemoryReceiver

MEMBERS = [Member("trainer", "a"), Member("rollout", "b")]


def transfer(version: int) -> Transfer:
    return Transfer(transfer_group=1, policy_version=version, members=MEMBERS, keep=True, deadline_s=1.0)


def staged(*versions: int) -> MemoryPublisher:
    publisher = MemoryPublisher()
    for version in versions:
        publisher.stage(version, [("w", torch.full((2,), float(version)))])
    return publisher


def test_a_receiver_gets_the_version_of_the_transfer() -> None:
    publisher = staged(3, 4)
    receiver = MemoryReceiver(publisher)
    done = asyncio.run(publisher.transfer(transfer(3)))
    asyncio.run(receiver.transfer(transfer(3)))

    assert (done.policy_version, done.num_bytes) == (3, 8)
    assert receiver.weights()["w"].tolist() == [3.0, 3.0]


def test_a_staged_version_does_not_follow_the_model() -> None:
    model = torch.zeros(2)
    publisher = MemoryPublisher()
    publisher.stage(0, [("w", model)])
    model += 1

    assert publisher.tensors(0)["w"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("version", [2, 5])
def test_a_version_that_is_not_staged_fails_the_transfer_on_both_sides(version: int) -> None:
    publisher = staged(2, 3, 4)
    for side in (publisher, MemoryReceiver(publisher)):
        with pytest.raises(TransferError, match=rf"version {version} is not staged; staged are \[3, 4\]"):
            asyncio.run(side.transfer(transfer(version)))
