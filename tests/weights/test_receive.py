import asyncio

import pytest

from asyncrl.config import Weights
from asyncrl.errors import TransferError
from asyncrl.messages import Member, StoreValue
from asyncrl.weights.plan import Plan
from asyncrl.weights.receive import Receiver

from .party import PLAN, SHORT_S, SPECS, party, tensors, transfer


async def ignored(_: object) -> None: ...


def receiver() -> Receiver:
    return Receiver(PLAN, Member("rollout-1", "r1"), ignored, Weights())


def test_nothing_can_be_taken_before_a_version_arrived_whole() -> None:
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


def test_a_sender_with_another_plan_is_refused_by_an_error_not_a_crash() -> None:
    async def main() -> None:
        async with party(receivers=1, plan=Plan(SPECS[:2], 64)) as (publisher, [receiver]):
            publisher.stage(1, tensors(1).items())
            order = transfer(1, 1, [1], deadline_s=2.0)
            errors = await asyncio.gather(publisher.transfer(order), receiver.transfer(order), return_exceptions=True)

            assert "different models" in str(errors[1])

    asyncio.run(main())


def test_answers_to_a_rendezvous_that_is_over_are_ignored() -> None:
    receiver().deliver(StoreValue("1", "0/0", b""))
