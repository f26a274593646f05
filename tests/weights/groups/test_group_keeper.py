import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from asyncrl.config.sections.weights import Weights
from asyncrl.errors import TransferError
from asyncrl.messages.codec import Message
from asyncrl.messages.session import StoreSet
from asyncrl.messages.weights import Abort, Member, Transfer
from asyncrl.weights.groups import group_keeper
from asyncrl.weights.groups.group import LibraryGroup, ProcessGroup
from asyncrl.weights.groups.group_keeper import GroupKeeper
from asyncrl.weights.groups.network_interface import Deadline
from asyncrl.weights.groups.store import Send
from asyncrl.weights.publish import Publisher, Receiver
from tests.weights.party import LAYOUT, LONG_S, SHORT_S, TRAINER, party, same, tensors, transfer


async def exchange(publisher: Publisher, receivers: list[Receiver], order: Transfer, version: int) -> None:
    publisher.stage(version, tensors(version).items())
    await asyncio.gather(publisher.transfer(order), *(receiver.transfer(order) for receiver in receivers))

    assert all(same(receiver.weights(), tensors(version)) for receiver in receivers)


async def silent(_: Message) -> None: ...


def keeper(send: Send = silent) -> GroupKeeper:
    return GroupKeeper(TRAINER, send, Weights(backend="gloo"))


def nothing(_: ProcessGroup, __: Deadline) -> None: ...


def test_a_group_is_formed_once_for_all_versions_of_a_transfer_group(monkeypatch: pytest.MonkeyPatch) -> None:
    formed: list[int] = []
    form = GroupKeeper._form

    def counted(keeper: GroupKeeper, running: Any, *args: Any) -> ProcessGroup:
        formed.append(running.transfer.transfer_group)
        return form(keeper, running, *args)

    monkeypatch.setattr(GroupKeeper, "_form", counted)

    async def main() -> None:
        async with party(receivers=2) as (publisher, receivers):
            for version in range(4):
                await exchange(publisher, receivers, transfer(1, version, [1, 2]), version)
            await exchange(publisher, receivers[:1], transfer(2, 4, [1]), 4)

    asyncio.run(main())
    assert sorted(formed) == [1, 1, 1, 2, 2]


def test_a_joiner_gets_its_version_between_two_publishes_and_the_kept_group_stays() -> None:
    async def main() -> None:
        async with party(receivers=3) as (publisher, [one, two, joiner]):
            await exchange(publisher, [one, two], transfer(1, 1, [1, 2]), 1)
            kept = publisher._keeper._groups[1]
            await exchange(publisher, [joiner], transfer(2, 1, [3], keep=False), 1)
            await exchange(publisher, [one, two], transfer(1, 2, [1, 2]), 2)

            assert publisher._keeper._groups == {1: kept}
            assert joiner._keeper._groups == {}
            await exchange(publisher, [one, two, joiner], transfer(3, 3, [1, 2, 3]), 3)

    asyncio.run(main())


def test_a_pair_that_fails_leaves_the_kept_group_alone() -> None:
    async def main() -> None:
        async with party(receivers=1) as (publisher, receivers):
            await exchange(publisher, receivers, transfer(1, 1, [1]), 1)
            with pytest.raises(TransferError, match="rollout-9"):
                await publisher.transfer(transfer(2, 1, [9], keep=False, deadline_s=SHORT_S))
            await exchange(publisher, receivers, transfer(1, 2, [1]), 2)

    asyncio.run(main())


def test_a_member_that_never_joins_is_named_to_the_others() -> None:
    async def main() -> None:
        async with party(receivers=1) as (publisher, [receiver]):
            publisher.stage(1, tensors(1).items())
            order = transfer(1, 1, [1, 2], deadline_s=SHORT_S)
            errors = await asyncio.gather(publisher.transfer(order), receiver.transfer(order), return_exceptions=True)

            assert [type(error) for error in errors] == [TransferError, TransferError]
            assert all("rollout-2 (rank 2) did not join" in str(error) for error in errors)
            await exchange(publisher, [receiver], transfer(2, 1, [1]), 1)

    asyncio.run(main())


def test_a_failed_transfer_group_is_never_used_again() -> None:
    async def main() -> None:
        async with party(receivers=1) as (publisher, _):
            for reason in ("did not join", "this transfer group failed before"):
                with pytest.raises(TransferError, match=reason):
                    await publisher.transfer(transfer(1, 1, [1], deadline_s=SHORT_S))

    asyncio.run(main())


def test_a_node_that_is_not_a_member_is_refused_with_its_incarnation() -> None:
    order = transfer(1, 1, [1])
    order.members[0] = Member("trainer", "t0")
    with pytest.raises(TransferError, match=r"trainer \(t1\) is not a member"):
        keeper().rank(order)


def test_a_cancelled_transfer_frees_the_thread_before_its_deadline() -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def send(message: Message) -> None:
            if isinstance(message, StoreSet):
                asked.set()

        groups = keeper(send)
        task = asyncio.create_task(groups.run(transfer(1, 1, [1], deadline_s=1000.0), 0, nothing))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(LONG_S):
            await groups.aclose()

    asyncio.run(main())


def test_closing_ends_a_rendezvous_and_refuses_the_next() -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def send(_: Message) -> None:
            asked.set()

        groups = keeper(send)
        task = asyncio.create_task(groups.run(transfer(1, 1, [1], deadline_s=1000.0), 0, nothing))
        await asked.wait()
        await groups.aclose()
        with pytest.raises(TransferError, match="this node is closing"):
            await task

    asyncio.run(main())


def test_closing_does_not_wait_for_a_connecting_library_and_then_sends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connecting, may_connect, closed, moved = (threading.Event() for _ in range(4))

    class Connected:
        close = closed.set

    def connect(*_: object, **__: object) -> Connected:
        connecting.set()
        may_connect.wait(LONG_S)
        return Connected()

    monkeypatch.setattr(group_keeper, "form", connect)
    monkeypatch.setattr(group_keeper, "LEAVE_S", 0.01)

    async def main() -> None:
        groups = keeper()
        order = transfer(1, 1, [1], deadline_s=1000.0)
        task = asyncio.create_task(groups.run(order, 0, lambda *_: moved.set()))
        await asyncio.to_thread(connecting.wait, LONG_S)
        await groups.aclose()
        assert not task.done()
        may_connect.set()
        with pytest.raises(TransferError, match="this node is closing"):
            await task

    asyncio.run(main())
    assert closed.is_set()
    assert not moved.is_set()


# ── aborted ─────────────────────────────────────────────────────────────────────────────────

LOST = Abort(1, "rollout-2 was silent")


def test_an_abort_that_arrives_before_its_transfer_cancels_it() -> None:
    async def main() -> None:
        groups = keeper()
        groups.abort(LOST)
        with pytest.raises(TransferError, match="rollout-2 was silent"):
            await groups.run(transfer(1, 1, [1], deadline_s=1000.0), 0, nothing)
        await groups.aclose()

    asyncio.run(main())


def test_an_abort_ends_a_rendezvous_at_once_and_names_the_lost_node() -> None:
    async def main() -> None:
        async with party(receivers=1) as (publisher, [receiver]):
            publisher.stage(1, tensors(1).items())
            order = transfer(1, 1, [1, 2], deadline_s=1000.0)
            moving = [asyncio.create_task(end.transfer(order)) for end in (publisher, receiver)]
            await asyncio.sleep(0)
            async with asyncio.timeout(LONG_S):
                for end in (publisher, receiver):
                    end.abort(LOST)
                    end.abort(LOST)
                errors = await asyncio.gather(*moving, return_exceptions=True)

            assert all("rollout-2 was silent" in str(error) for error in errors)
            await exchange(publisher, [receiver], transfer(2, 1, [1]), 1)

    asyncio.run(main())


def test_an_abort_frees_a_thread_inside_a_broadcast_that_nobody_joins() -> None:
    """Rank 1 has its broadcast for itself: rank 0 is connected, and never begins one."""

    async def main() -> None:
        async with party(receivers=1) as (publisher, [receiver]):
            await exchange(publisher, [receiver], transfer(1, 1, [1]), 1)
            waiting = asyncio.create_task(receiver.transfer(transfer(1, 2, [1], deadline_s=1000.0)))
            inside = receiver._keeper._running
            while not inside:
                await asyncio.sleep(0)
            async with asyncio.timeout(LONG_S):
                receiver.abort(Abort(1, "the trainer was lost"))
                with pytest.raises(TransferError, match="failed: the trainer was lost"):
                    await waiting
            await exchange(publisher, [receiver], transfer(2, 2, [1]), 2)

    asyncio.run(main())


def test_an_abort_of_a_transfer_whose_deadline_has_just_passed_changes_nothing() -> None:
    """A frozen process finds both when it continues."""

    async def main() -> None:
        async with party(receivers=1) as (_, [receiver]):
            waiting = asyncio.create_task(receiver.transfer(transfer(1, 1, [1], deadline_s=1000.0)))
            while not (inside := receiver._keeper._running):
                await asyncio.sleep(0)
            inside[0].limit.reschedule(0.0)
            aborted = asyncio.Event()

            def abort() -> None:
                receiver.abort(LOST)
                aborted.set()

            asyncio.get_running_loop().call_soon(abort)
            with pytest.raises(TransferError, match="rollout-2 was silent"):
                await waiting
            async with asyncio.timeout(LONG_S):
                await aborted.wait()

    asyncio.run(main())


def test_an_abort_of_a_group_that_has_ended_changes_nothing() -> None:
    async def main() -> None:
        async with party(receivers=1) as (publisher, [receiver]):
            await exchange(publisher, [receiver], transfer(1, 1, [1]), 1)
            await exchange(publisher, [receiver], transfer(2, 2, [1]), 2)
            receiver.abort(LOST)
            publisher.abort(LOST)
            assert receiver.policy_version == 2
            await exchange(publisher, [receiver], transfer(2, 3, [1]), 3)

    asyncio.run(main())


@pytest.mark.parametrize("is_aborted", [True, False], ids=["aborted", "cancelled"])
def test_a_thread_that_connects_is_left_behind_and_disturbs_no_later_transfer(
    is_aborted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting, may_connect, closed = (threading.Event() for _ in range(3))
    moved: list[int] = []

    class Connected:
        close = closed.set

    def connect(*_: object, **__: object) -> Connected:
        if connecting.is_set():
            return Connected()
        connecting.set()
        may_connect.wait(LONG_S)
        return Connected()

    monkeypatch.setattr(group_keeper, "form", connect)
    monkeypatch.setattr(group_keeper, "LEAVE_S", 0.01)

    async def main() -> None:
        groups = keeper()
        stuck = asyncio.create_task(groups.run(transfer(1, 1, [1], deadline_s=1000.0), 0, lambda *_: moved.append(1)))
        await asyncio.to_thread(connecting.wait, LONG_S)
        if is_aborted:
            groups.abort(LOST)
            with pytest.raises(TransferError, match="rollout-2 was silent"):
                await stuck
        else:  # As when the session of a node ends, because the broker has restarted.
            stuck.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stuck
        async with asyncio.timeout(LONG_S):
            await groups.run(transfer(2, 1, [1]), 0, lambda *_: moved.append(2))
        kept = dict(groups._groups)
        may_connect.set()
        assert await asyncio.to_thread(closed.wait, LONG_S)
        assert groups._groups == kept
        await groups.aclose()

    asyncio.run(main())
    assert moved == [2]


def test_an_abort_lets_a_waiting_device_library_be_aborted_as_its_deadline_does() -> None:
    async def main() -> None:
        groups = keeper()
        groups._backend = "hccl"
        aborted = threading.Event()

        class Stuck:
            def is_completed(self) -> bool:
                return False

            def broadcast(self, *_: object) -> "Stuck":
                return self

            abort = aborted.set

        groups._groups[1] = LibraryGroup(cast("Any", Stuck()))
        waiting = asyncio.create_task(
            groups.run(
                transfer(1, 1, [1], deadline_s=1000.0),
                0,
                lambda group, deadline: group.broadcast(torch.zeros(1), 0, deadline),
            )
        )
        while not groups._running:
            await asyncio.sleep(0)
        async with asyncio.timeout(LONG_S):
            groups.abort(LOST)
            with pytest.raises(TransferError, match="rollout-2 was silent"):
                await waiting
        assert aborted.is_set()
        await groups.aclose()

    asyncio.run(main())


def test_closing_ends_a_running_exchange() -> None:
    async def main() -> None:
        async with party(receivers=1) as (publisher, [receiver]):
            await exchange(publisher, [receiver], transfer(1, 1, [1]), 1)
            waiting = asyncio.create_task(receiver.transfer(transfer(1, 2, [1], deadline_s=1000.0)))
            while not receiver._keeper._running:
                await asyncio.sleep(0)
            async with asyncio.timeout(LONG_S):
                await receiver.aclose()
                with pytest.raises(TransferError, match="this node is closing"):
                    await waiting

    asyncio.run(main())


def test_closing_leaves_no_thread_behind() -> None:
    def native() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    async def main() -> tuple[int, int]:
        before = native()
        async with party(receivers=2) as (publisher, receivers):
            await exchange(publisher, receivers, transfer(1, 1, [1, 2]), 1)
            during = native()
            with pytest.raises(TransferError):
                await publisher.transfer(transfer(2, 1, [1], deadline_s=SHORT_S))
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("asyncrl-weights")]
        async with asyncio.timeout(LONG_S):
            # The kernel lists a joined thread for a moment longer, and sets no event when it is gone.
            while native() > before:
                await asyncio.sleep(0)
        return before, during

    before, during = asyncio.run(main())
    assert during > before


def test_closing_twice_is_fine() -> None:
    async def main() -> None:
        receiver = Receiver(LAYOUT, TRAINER, silent, Weights())
        await receiver.aclose()
        await receiver.aclose()

    asyncio.run(main())
