import asyncio
import os
import signal
import sys
import threading
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from asyncrl.config.sections.weights import Weights
from asyncrl.errors import ConfigError, TransferError
from asyncrl.messages.session import Bye, StoreValue
from asyncrl.messages.weights import Abort, Member, TransferFailed, Transferred
from asyncrl.messages.wire import CODEC
from asyncrl.weights.contents.header import Checksum
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.publish import OnBucket, Publisher, Receiver
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.wire.zmq_link import ZmqLink
from tests.weights import receiving_process
from tests.weights.party import (
    DEFAULTS,
    LAYOUT,
    LONG_S,
    SHORT_S,
    SPECS,
    TRAINER,
    Rendezvous,
    forward,
    move,
    party,
    same,
    tensors,
    transfer,
)

Loss = tuple[str, Awaitable[object]]
"""A member that is lost, and what waits until that is so."""


async def unused(_: object) -> None:
    raise AssertionError("nothing is sent in this test")


def publisher() -> Publisher:
    return Publisher(LAYOUT, TRAINER, unused, Weights())


def test_a_staged_version_arrives_bit_for_bit_while_the_model_changes() -> None:
    async def main() -> None:
        async with party(receivers=2) as (publisher, receivers):
            sent, model = tensors(1), tensors(1)
            publisher.stage(1, model.items())
            for tensor in model.values():
                tensor.zero_()
            order = transfer(1, 1, [1, 2])
            sending = asyncio.create_task(publisher.transfer(order))
            seconds = await asyncio.gather(*(receiver.transfer(order) for receiver in receivers))
            done = await sending

            assert done == Transferred(1, 1, done.seconds, LAYOUT.num_bytes)
            assert all(s > 0 for s in seconds)
            assert all(same(receiver.weights(), sent) for receiver in receivers)

    asyncio.run(main())


def test_the_version_before_the_newest_can_still_be_sent() -> None:
    """The broker learns of the newest version later, and may still ask for the one before."""

    async def main() -> None:
        async with party(receivers=1) as (publisher, [receiver]):
            for version in (1, 2):
                publisher.stage(version, tensors(version).items())
            await move(transfer(1, 1, [1]), publisher, receiver)
            assert same(receiver.weights(), tensors(1))

            await move(transfer(1, 2, [1]), publisher, receiver)
            assert same(receiver.weights(), tensors(2))

    asyncio.run(main())


def test_the_next_version_is_staged_while_one_moves_to_a_slow_rollout() -> None:
    arrived, go_on = threading.Event(), threading.Event()
    received: dict[str, torch.Tensor] = {}

    def take_slowly(views: Mapping[str, torch.Tensor]) -> None:
        arrived.set()
        assert go_on.wait(LONG_S)
        received.update({name: view.clone() for name, view in views.items()})

    async def main() -> None:
        config = Weights(staging="bucket")
        async with party(receivers=1, config=config, on_bucket=take_slowly) as (publisher, [receiver]):
            publisher.stage(1, tensors(1).items())
            moving = asyncio.create_task(move(transfer(1, 1, [1]), publisher, receiver))
            await asyncio.to_thread(arrived.wait, LONG_S)
            publisher.stage(2, tensors(2).items())
            assert not moving.done()
            go_on.set()
            await moving
            assert same(received, tensors(1))

            await move(transfer(1, 2, [1]), publisher, receiver)
            assert same(received, tensors(2))

    asyncio.run(main())


def changed(seed: int) -> dict[str, torch.Tensor]:
    """`tensors(1)` with one other element."""
    weights = tensors(1)
    weights["embed"][seed % 5, seed % 3] = seed
    return weights


def test_only_changes_are_sent_from_the_second_transfer_of_a_group_on() -> None:
    async def main() -> None:
        async with party(receivers=2, config=Weights(delta=True)) as (publisher, receivers):
            for version in (2, 3, 4):
                publisher.stage(version, changed(version).items())
                done, *_ = await move(transfer(1, version, [1, 2]), publisher, *receivers)

                assert isinstance(done, Transferred)
                assert done.num_bytes == (LAYOUT.num_bytes if version == 2 else 2 * 5)
                assert publisher.changed_fraction == (None if version == 2 else 2 / LAYOUT.num_items)
                assert all(same(receiver.weights(), changed(version)) for receiver in receivers)

    asyncio.run(main())


def test_the_base_is_what_was_sent_last_not_what_was_staged_last() -> None:
    async def main() -> None:
        async with party(receivers=1, config=Weights(delta=True)) as (publisher, [receiver]):
            publisher.stage(2, changed(2).items())
            await move(transfer(1, 2, [1]), publisher, receiver)
            for version in (3, 4):
                publisher.stage(version, changed(version).items())
            done, _ = await move(transfer(1, 4, [1]), publisher, receiver)

            assert isinstance(done, Transferred)
            assert done.num_bytes == 2 * 5  # Back to what element of version 2 was, and the one of version 4.
            assert same(receiver.weights(), changed(4))

    asyncio.run(main())


def test_a_new_group_and_a_pair_get_everything_and_leave_the_base_of_others_alone() -> None:
    async def main() -> None:
        async with party(receivers=2, config=Weights(delta=True)) as (publisher, [first, joiner]):

            async def sent(transfer_group: int, version: int, ranks: list[int], keep: bool = True) -> int:
                ends = [[first, joiner][rank - 1] for rank in ranks]
                done, *_ = await move(transfer(transfer_group, version, ranks, keep=keep), publisher, *ends)
                assert isinstance(done, Transferred)
                assert all(same(end.weights(), changed(version)) for end in ends)
                return done.num_bytes

            publisher.stage(2, changed(2).items())
            assert await sent(1, 2, [1]) == LAYOUT.num_bytes
            assert await sent(2, 2, [2], keep=False) == LAYOUT.num_bytes
            publisher.stage(3, changed(3).items())
            assert await sent(1, 3, [1]) < LAYOUT.num_bytes
            publisher.stage(4, changed(4).items())
            assert await sent(3, 4, [1, 2]) == LAYOUT.num_bytes
            publisher.stage(5, changed(5).items())
            assert await sent(3, 5, [1, 2]) < LAYOUT.num_bytes

    asyncio.run(main())


def test_tensors_are_cast_to_the_dtypes_of_the_layout() -> None:
    async def main() -> None:
        async with party(receivers=1) as (publisher, [receiver]):
            model = {name: tensor.double() for name, tensor in tensors(1).items()}
            publisher.stage(1, model.items())
            await asyncio.gather(publisher.transfer(transfer(1, 1, [1])), receiver.transfer(transfer(1, 1, [1])))

            assert same(receiver.weights(), tensors(1))

    asyncio.run(main())


def test_both_ends_fail_at_once_if_the_requested_version_is_no_longer_staged() -> None:
    async def main() -> None:
        async with party(receivers=1) as (publisher, [receiver]):
            publisher.stage(2, tensors(2).items())
            order = transfer(1, 1, [1])
            errors = await move(order, publisher, receiver)

            assert "version 2 is staged, not 1" in str(errors[0])
            assert "the sender has version 2 staged, not 1" in str(errors[1])
            assert receiver.policy_version is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"norm": torch.zeros(8)}, r"norm has shape \(8,\); the weight layout has \(7,\)", id="shape"),
        pytest.param({"head": torch.zeros(8)}, "head is not in the weight layout", id="unknown"),
    ],
)
def test_tensors_that_do_not_fit_the_layout_are_refused(change: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(TransferError, match=message):
        publisher().stage(1, (tensors(1) | change).items())


def test_a_staged_version_stays_when_the_next_one_is_refused() -> None:
    async def main() -> None:
        async with party(receivers=1) as (publisher, [receiver]):
            publisher.stage(1, tensors(1).items())
            with pytest.raises(TransferError, match="lacks"):
                publisher.stage(2, [])
            await move(transfer(1, 1, [1]), publisher, receiver)

            assert same(receiver.weights(), tensors(1))

    asyncio.run(main())


def test_a_model_that_lacks_a_tensor_is_refused() -> None:
    with pytest.raises(TransferError, match="version 1 lacks embed"):
        publisher().stage(1, [(name, tensor) for name, tensor in tensors(1).items() if name != "embed"])


def test_the_trainer_must_be_first_among_the_members() -> None:
    order = transfer(1, 1, [1])
    order.members.reverse()
    with pytest.raises(TransferError, match="lists the trainer at rank 1"):
        asyncio.run(publisher().transfer(order))


@asynccontextmanager
async def process(address: str, rank: int, die_by: int = 0, die_at: int = 0) -> AsyncIterator[Process]:
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


async def frozen(child: Process) -> None:
    """Wait until a child process is stopped by a signal."""
    await asyncio.to_thread(os.waitid, os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)


@pytest.mark.slow("receivers are processes that import torch")
def test_a_receiver_killed_or_frozen_halfway_costs_one_transfer_group_and_no_more() -> None:
    """Rollout 2 is killed in the second bucket of version 2, rollout 3 freezes in that of version 3."""

    async def main() -> None:
        layout = receiving_process.LAYOUT
        hub = ZmqHub("ipc://*", CODEC)
        link = ZmqLink(hub.address, "trainer", CODEC)
        publisher = Publisher(layout, TRAINER, link.send, Weights())
        rendezvous = Rendezvous(hub)
        tasks = [asyncio.create_task(rendezvous.run()), asyncio.create_task(forward(link, publisher))]

        async def publish(transfer_group: int, version: int, ranks: list[int], loss: Loss | None = None) -> str:
            weights = {spec.name: torch.full(spec.shape, float(version)) for spec in layout.specs}
            publisher.stage(version, weights.items())
            order = transfer(transfer_group, version, ranks, deadline_s=1000.0)
            for rank in ranks:
                hub.send(f"rollout-{rank}", order)
            moving = asyncio.create_task(publisher.transfer(order))
            if loss:
                lost, halfway = loss
                await halfway
                abort = Abort(transfer_group, f"{lost} was lost")
                publisher.abort(abort)
                for rank in ranks:
                    hub.send(f"rollout-{rank}", abort)
            async with asyncio.timeout(LONG_S):
                await moving
            return receiving_process.digest(weights)

        async def received(count: int) -> dict[str, object]:
            return dict([await rendezvous.others.get() for _ in range(count)])

        async with AsyncExitStack() as stack:
            await stack.enter_async_context(process(hub.address, 1))
            killed: Process = await stack.enter_async_context(process(hub.address, 2, signal.SIGKILL, 2))
            stopped: Process = await stack.enter_async_context(process(hub.address, 3, signal.SIGSTOP, 3))
            await received(3)

            digest = await publish(1, 1, [1, 2, 3])
            assert await received(3) == {f"rollout-{rank}": Bye(digest) for rank in (1, 2, 3)}

            with pytest.raises(
                TransferError, match="version 2 with rollout-1, rollout-2, rollout-3 in transfer group 1"
            ):
                await publish(1, 2, [1, 2, 3], ("rollout-2", killed.wait()))
            assert all(isinstance(fact, TransferFailed) for fact in (await received(2)).values())
            assert await killed.wait() == -signal.SIGKILL

            with pytest.raises(TransferError, match="version 3 with rollout-1, rollout-3 in transfer group 2"):
                await publish(2, 3, [1, 3], ("rollout-3", frozen(stopped)))
            failed = (await received(1))["rollout-1"]
            assert isinstance(failed, TransferFailed)
            # The trainer may have closed its connections before the abort reached this member.
            assert failed.reason.endswith("failed: rollout-3 was lost") or "Connection closed by peer" in failed.reason

            digest = await publish(3, 4, [1])
            assert await received(1) == {"rollout-1": Bye(digest)}

        for task in tasks:
            task.cancel()
        await publisher.aclose()
        await link.aclose()
        await hub.aclose()

    asyncio.run(main())


# ── test receive ──────────────────────────────────────────────────────────────────────────────


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
