import asyncio
from collections.abc import Mapping
from typing import Literal

import pytest
import torch
from torch import Tensor

from asyncrl.config.sections.weights import Weights
from asyncrl.errors import ConfigError, TransferError
from asyncrl.messages.session import StoreValue
from asyncrl.messages.weights import Member, Transferred
from asyncrl.weights.contents.checksum import Checksum
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.receive import OnBucket, Receiver
from tests.weights.party import DEFAULTS, LAYOUT, SHORT_S, SPECS, move, party, same, tensors, transfer


async def ignored(_: object) -> None: ...


def receiver() -> Receiver:
    return Receiver(LAYOUT, Member("rollout-1", "r1"), ignored, Weights())


def test_there_are_no_weights_before_a_complete_version() -> None:
    with pytest.raises(TransferError, match="no complete policy version is staged"):
        receiver().weights()


def test_a_receiver_cannot_send() -> None:
    order = transfer(1, 1, [])
    order.members[0] = Member("rollout-1", "r1")
    with pytest.raises(TransferError, match="lists a receiver at rank 0"):
        asyncio.run(receiver().transfer(order))


def test_a_broken_transfer_that_never_began_leaves_the_old_version_whole() -> None:
    async def main() -> None:
        async with party(receivers=1) as (publisher, [receiver]):
            publisher.stage(1, tensors(1).items())
            await asyncio.gather(publisher.transfer(transfer(1, 1, [1])), receiver.transfer(transfer(1, 1, [1])))
            with pytest.raises(TransferError, match="trainer"):
                await receiver.transfer(transfer(1, 2, [1], deadline_s=SHORT_S))

            assert receiver.policy_version == 1

    asyncio.run(main())


@pytest.mark.slow("waits for a real deadline")
def test_a_sender_with_another_layout_is_refused_by_an_error_not_a_crash() -> None:
    async def main() -> None:
        async with party(receivers=1, layout=Layout(SPECS[:2], 64)) as (publisher, [receiver]):
            publisher.stage(1, tensors(1).items())
            order = transfer(1, 1, [1], deadline_s=2.0)
            errors = await asyncio.gather(publisher.transfer(order), receiver.transfer(order), return_exceptions=True)

            assert "different models" in str(errors[1])

    asyncio.run(main())


class Tampered(Checksum):
    """Computes a wrong checksum."""

    def __call__(self, buffer: Tensor) -> int:
        return super().__call__(buffer) ^ 1


@pytest.mark.parametrize("config", [Weights(), Weights(verify=True), Weights(delta=True)])
def test_a_damaged_bucket_kills_the_transfer_group_and_a_new_one_brings_everything(config: Weights) -> None:
    async def main() -> None:
        async with party(receivers=1, config=config) as (publisher, [receiver]):
            publisher.stage(1, tensors(1).items())
            intact = receiver._checksum
            if config != DEFAULTS:
                await move(transfer(1, 1, [1]), publisher, receiver)
                publisher.stage(2, tensors(2).items())
            version = publisher.copies.newest
            receiver._checksum = Tampered(torch.device("cpu"))
            done, damage = await move(transfer(1, version, [1]), publisher, receiver)
            assert isinstance(done, Transferred)
            assert "bucket 0 of 2, which begins with adapter, is damaged: its checksum is" in str(damage)
            assert receiver.policy_version is None

            receiver._checksum = intact
            _, dead = await move(transfer(1, version, [1], deadline_s=SHORT_S), publisher, receiver)
            assert "this transfer group failed before" in str(dead)

            done, _ = await move(transfer(2, version, [1]), publisher, receiver)
            assert isinstance(done, Transferred)
            assert done.num_bytes == LAYOUT.num_bytes
            assert same(receiver.weights(), tensors(version))

    asyncio.run(main())


def test_only_the_first_transfer_of_a_group_is_checked_unless_asked() -> None:
    async def main() -> None:
        async with party(receivers=1) as (publisher, [receiver]):
            publisher.stage(1, tensors(1).items())
            await move(transfer(1, 1, [1]), publisher, receiver)
            receiver._checksum = Tampered(torch.device("cpu"))
            publisher.stage(2, tensors(2).items())
            await move(transfer(1, 2, [1]), publisher, receiver)

            assert same(receiver.weights(), tensors(2))

    asyncio.run(main())


@pytest.mark.parametrize("held", [None, 1, 3])
def test_changes_since_a_version_that_is_not_here_are_refused(held: int | None) -> None:
    async def main() -> None:
        async with party(receivers=1, config=Weights(delta=True)) as (publisher, [receiver]):
            publisher.stage(2, tensors(2).items())
            await move(transfer(1, 2, [1]), publisher, receiver)
            receiver.policy_version = held
            publisher.stage(3, tensors(3).items())
            _, refusal = await move(transfer(1, 3, [1], deadline_s=SHORT_S), publisher, receiver)

            assert f"what changed since version 2, but version {held} is staged here" in str(refusal)
            assert receiver.policy_version == held

    asyncio.run(main())


def test_an_engine_can_load_bucket_by_bucket_without_staging() -> None:
    taken: dict[str, Tensor] = {}

    def take(views: Mapping[str, Tensor]) -> None:
        taken.update({name: view.clone() for name, view in views.items()})

    async def main() -> None:
        async with party(receivers=1, config=Weights(staging="bucket"), on_bucket=take) as (publisher, [receiver]):
            with pytest.raises(TransferError, match="no complete policy version"):
                receiver.weights()
            publisher.stage(1, tensors(1).items())
            await move(transfer(1, 1, [1]), publisher, receiver)

            assert same(taken, tensors(1))
            assert (receiver.policy_version, receiver.weights()) == (1, {})

    asyncio.run(main())


@pytest.mark.parametrize(("staging", "on_bucket"), [("bucket", None), ("whole", lambda _: None)])
def test_bucket_staging_needs_an_engine_that_loads_buckets_and_vice_versa(
    staging: Literal["whole", "bucket"], on_bucket: OnBucket | None
) -> None:
    member = Member("rollout-1", "r1")
    with pytest.raises(ConfigError, match=f"weights.staging is '{staging}', but the engine loads"):
        Receiver(LAYOUT, member, ignored, Weights(staging=staging), on_bucket=on_bucket)


def test_answers_to_a_rendezvous_that_is_over_are_ignored() -> None:
    receiver().deliver(StoreValue("1", "0/0", b""))
