"""Versions: staged, offered, and sent in the order that the broker asks for."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from asyncrl.actor.message import Message
from asyncrl.actor.occupancy import Occupancy
from asyncrl.errors import TransferError
from asyncrl.messages.trainer import Work
from asyncrl.messages.weights import Member, Publishing, Transfer, TransferFailed, Transferred, Upload, Uploaded
from asyncrl.messages.words import Activity
from asyncrl.trainer.loop.progress import Progress
from asyncrl.trainer.loop.publications import Publications


class Everything:
    """Link, learner, publisher, uploader, other ranks and thread of a trainer, which note what happens."""

    def __init__(self, *, stores: bool = True) -> None:
        self.happened: list[Any] = []
        self.sent: asyncio.Queue[Message] = asyncio.Queue()
        self.error: TransferError | None = None
        self.progress = Progress()
        both: Any = self
        self.publications = Publications(
            both,
            both,
            both if stores else None,
            learner=both,
            others=both,
            newest=-1,
            progress=self.progress,
            occupancy=Occupancy[Activity](("publishing",)),
            in_thread=self.in_thread,
        )

    async def send(self, message: Message) -> None:
        self.sent.put_nowait(message)

    def broadcast(self, work: Work) -> None:
        self.happened.append(work.kind)

    def named_weights(self) -> str:
        return "weights"

    def stage(self, policy_version: int, weights: str) -> None:
        self.happened.append(f"{weights} of {policy_version}")

    async def in_thread(self, _activity: Activity, function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    async def transfer(self, transfer: Transfer) -> Transferred:
        if self.error:
            raise self.error
        return Transferred(transfer.transfer_group, transfer.policy_version, 0.125, 99)

    async def upload(self, policy_version: int) -> Uploaded:
        self.happened.append(f"upload {policy_version}")
        return Uploaded(policy_version, 0.5, 77)

    async def upload_anchor(self) -> None:
        self.happened.append("anchor")


def play(trainer: Everything, act: Callable[[Publications], Awaitable[None]]) -> None:
    """Run transfers and uploads beside an act."""

    async def main() -> None:
        loops = [asyncio.ensure_future(loop()) for loop in (trainer.publications.transfer, trainer.publications.upload)]
        async with asyncio.timeout(10.0):
            await act(trainer.publications)
        for loop in loops:
            loop.cancel()
        await asyncio.wait(loops)

    asyncio.run(main())


def transfer(policy_version: int, transfer_group: int = 1) -> Transfer:
    members = [Member("trainer-0", "1"), Member("r-0", "1")]
    return Transfer(transfer_group, policy_version, members, keep=True, deadline_s=5.0)


async def idle() -> None:
    """Let tasks go on until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_version_is_gathered_from_all_ranks_staged_and_offered() -> None:
    trainer = Everything()

    async def act(publications: Publications) -> None:
        await publications.publish(next_step=3)
        assert trainer.happened == ["gather", "weights of 0"]
        assert await trainer.sent.get() == Publishing(0, 3)
        assert (publications.newest, publications.live) == (0, -1)

    play(trainer, act)


def test_one_version_may_wait_and_the_next_one_waits_to_be_staged() -> None:
    trainer = Everything()

    async def act(publications: Publications) -> None:
        await publications.publish(next_step=0)
        await publications.publish(next_step=1)
        third = asyncio.ensure_future(publications.publish(next_step=2))
        await idle()
        assert not third.done()
        publications.went_live(0)
        await third
        assert trainer.happened[-1] == "weights of 2"

    play(trainer, act)


def test_a_version_that_was_passed_over_is_not_waited_for() -> None:
    """Its transfer broke while the next was staged already; that one went live in its place."""

    async def act(publications: Publications) -> None:
        for version in (0, 1):
            await publications.publish(next_step=version)
            publications.went_live(version)
        await publications.publish(next_step=2)
        await publications.publish(next_step=3)
        publications.went_live(3)
        await publications.publish(next_step=4)
        assert publications.newest == 4

    play(Everything(), act)


def test_at_the_end_nothing_is_waited_for_or_offered_and_versions_go_on_counting() -> None:
    trainer = Everything()

    async def act(publications: Publications) -> None:
        await publications.publish(next_step=0)
        await publications.publish(next_step=1)
        waiting = asyncio.ensure_future(publications.publish(next_step=2))
        await idle()
        publications.end()
        await waiting
        assert publications.newest == 2
        assert trainer.sent.qsize() == 2

    play(trainer, act)


def test_transfers_run_in_the_order_they_were_asked() -> None:
    trainer = Everything()

    async def act(publications: Publications) -> None:
        publications.request(transfer(0, transfer_group=1))
        publications.request(transfer(0, transfer_group=2))
        assert await trainer.sent.get() == Transferred(1, 0, 0.125, 99)
        assert await trainer.sent.get() == Transferred(2, 0, 0.125, 99)
        assert trainer.progress.last_publish.transfer_group == 2

    play(trainer, act)


def test_a_broken_transfer_is_reported_and_the_next_one_is_run() -> None:
    trainer = Everything()

    async def act(publications: Publications) -> None:
        trainer.error = TransferError("r-0 is late")
        publications.request(transfer(0, transfer_group=1))
        assert await trainer.sent.get() == TransferFailed(1, 0, "r-0 is late")
        trainer.error = None
        publications.request(transfer(0, transfer_group=2))
        assert await trainer.sent.get() == Transferred(2, 0, 0.125, 99)

    play(trainer, act)


def test_versions_are_uploaded_in_the_order_they_were_asked_and_an_anchor_after_the_answer() -> None:
    trainer = Everything()

    async def act(publications: Publications) -> None:
        publications.request(Upload(0))
        publications.request(Upload(1))
        assert await trainer.sent.get() == Uploaded(0, 0.5, 77)
        assert await trainer.sent.get() == Uploaded(1, 0.5, 77)
        await idle()
        assert trainer.happened == ["upload 0", "anchor", "upload 1", "anchor"]

    play(trainer, act)


def test_a_trainer_that_stores_no_weights_says_so() -> None:
    trainer = Everything(stores=False)

    async def act(publications: Publications) -> None:
        publications.request(Upload(0))
        answer = await trainer.sent.get()
        assert isinstance(answer, Uploaded)
        assert answer.problem == "this trainer stores no weights"

    play(trainer, act)
