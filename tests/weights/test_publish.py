import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import torch

from asyncrl.actor.zmq_link import ZmqHub, ZmqLink
from asyncrl.config import Weights
from asyncrl.errors import TransferError
from asyncrl.messages import Bye, TransferFailed, Transferred
from asyncrl.weights.publish import Publisher

from . import receiving_process
from .party import LONG_S, PLAN, TRAINER, Rendezvous, forward, party, same, tensors, transfer

DIE_S = 1.0


async def unused(_: object) -> None:
    raise AssertionError("nothing is sent in this test")


def publisher() -> Publisher:
    return Publisher(PLAN, TRAINER, unused, Weights())


def test_what_was_staged_arrives_bit_for_bit_and_the_model_may_change_meanwhile() -> None:
    async def main() -> None:
        async with party(receivers=2) as (publisher, receivers):
            sent, model = tensors(1), tensors(1)
            publisher.stage(1, model.items())
            for tensor in model.values():
                tensor.zero_()
            order = transfer(1, 1, [1, 2])
            done, *seconds = await asyncio.gather(*(end.transfer(order) for end in (publisher, *receivers)))

            assert done == Transferred(1, 1, done.seconds, PLAN.num_bytes)
            assert all(s > 0 for s in seconds)
            assert all(same(receiver.weights(), sent) for receiver in receivers)

    asyncio.run(main())


def test_tensors_are_cast_to_the_dtypes_of_the_plan() -> None:
    async def main() -> None:
        async with party(receivers=1) as (publisher, [receiver]):
            model = {name: tensor.double() for name, tensor in tensors(1).items()}
            publisher.stage(1, model.items())
            await asyncio.gather(publisher.transfer(transfer(1, 1, [1])), receiver.transfer(transfer(1, 1, [1])))

            assert same(receiver.weights(), tensors(1))

    asyncio.run(main())


def test_both_ends_hear_at_once_that_the_asked_version_is_no_longer_staged() -> None:
    async def main() -> None:
        async with party(receivers=1) as (publisher, [receiver]):
            publisher.stage(2, tensors(2).items())
            order = transfer(1, 1, [1])
            errors = await asyncio.gather(publisher.transfer(order), receiver.transfer(order), return_exceptions=True)

            assert "policy_version 2 is staged, not 1" in str(errors[0])
            assert "the sender has policy_version 2 staged, not 1" in str(errors[1])
            assert receiver.policy_version is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"norm": torch.zeros(8)}, r"norm has shape \(8,\); the weight plan says \(7,\)", id="shape"),
        pytest.param({"head": torch.zeros(8)}, "head is not in the weight plan", id="unknown"),
    ],
)
def test_tensors_that_do_not_fit_the_plan_are_refused(change: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(TransferError, match=message):
        publisher().stage(1, (tensors(1) | change).items())


def test_a_model_that_lacks_a_tensor_is_refused() -> None:
    with pytest.raises(TransferError, match="policy_version 1 lacks embed"):
        publisher().stage(1, [(name, tensor) for name, tensor in tensors(1).items() if name != "embed"])


def test_the_trainer_must_be_first_among_the_members() -> None:
    order = transfer(1, 1, [1])
    order.members.reverse()
    with pytest.raises(TransferError, match="lists the trainer at rank 1"):
        asyncio.run(publisher().transfer(order))


@asynccontextmanager
async def process(address: str, rank: int, die_by: int = 0, die_at: int = 0):
    script = str(Path(receiving_process.__file__))
    arguments = [script, address, f"rollout-{rank}", str(int(die_by)), str(die_at)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    child = await asyncio.create_subprocess_exec(sys.executable, *arguments, env=environment)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


def test_a_receiver_killed_or_frozen_halfway_costs_one_epoch_and_no_more() -> None:
    """Rollout 2 is killed in the second bucket of version 2, rollout 3 freezes in that of version 3."""

    async def main() -> None:
        plan = receiving_process.PLAN
        hub = ZmqHub("tcp://127.0.0.1:0")
        link = ZmqLink(hub.address, "trainer")
        publisher = Publisher(plan, TRAINER, link.send, Weights())
        rendezvous = Rendezvous(hub)
        tasks = [asyncio.create_task(rendezvous.run()), asyncio.create_task(forward(link, publisher))]

        async def publish(epoch: int, version: int, ranks: list[int], deadline_s: float = LONG_S) -> str:
            publisher.stage(version, [(spec.name, torch.full(spec.shape, float(version))) for spec in plan.specs])
            order = transfer(epoch, version, ranks, deadline_s=deadline_s)
            for rank in ranks:
                hub.send(f"rollout-{rank}", order)
            await publisher.transfer(order)
            return receiving_process.digest(publisher._staging.tensors)

        async def heard(count: int) -> dict[str, object]:
            return dict([await rendezvous.others.get() for _ in range(count)])

        async with AsyncExitStack() as stack:
            await stack.enter_async_context(process(hub.address, 1))
            killed: Process = await stack.enter_async_context(process(hub.address, 2, signal.SIGKILL, 2))
            await stack.enter_async_context(process(hub.address, 3, signal.SIGSTOP, 3))
            await heard(3)

            digest = await publish(1, 1, [1, 2, 3])
            assert await heard(3) == {f"rollout-{rank}": Bye(digest) for rank in (1, 2, 3)}

            with pytest.raises(TransferError, match="policy_version 2 with rollout-1, rollout-2, rollout-3 in epoch 1"):
                await publish(1, 2, [1, 2, 3], DIE_S)
            assert all(isinstance(fact, TransferFailed) for fact in (await heard(2)).values())
            assert await killed.wait() == -signal.SIGKILL

            with pytest.raises(TransferError, match="policy_version 3 with rollout-1, rollout-3 in epoch 2"):
                await publish(2, 3, [1, 3], DIE_S)
            assert isinstance((await heard(1))["rollout-1"], TransferFailed)

            digest = await publish(3, 4, [1])
            assert await heard(1) == {"rollout-1": Bye(digest)}

        for task in tasks:
            task.cancel()
        await publisher.aclose()
        await link.aclose()
        await hub.aclose()

    asyncio.run(main())
