"""The event loop goes on while a call of the compute thread ends."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch

from asyncrl.errors import TransferError
from asyncrl.messages.codec import Message
from asyncrl.messages.session import AskTurn, Asleep
from asyncrl.messages.trainer import Work
from asyncrl.messages.weights import Member, Publishing, Transfer, TransferFailed, Transferred, Upload, Uploaded
from asyncrl.messages.words import Activity
from asyncrl.records.metrics import METRICS
from asyncrl.trainer.loop.publications import DeviceTurns, Publications, TrainerProgress, compute_thread
from asyncrl.wire.occupancy import Occupancy

CPU = torch.device("cpu")


def test_what_the_event_loop_does_can_end_a_call_that_is_waited_for() -> None:
    """A collective, say: an actor that fails waits for its thread, which waits for the abort of its group."""

    async def main() -> bool:
        is_aborted = threading.Event()
        loop = asyncio.get_running_loop()
        async with compute_thread(CPU) as thread:
            call = loop.run_in_executor(thread, is_aborted.wait)
            loop.call_soon(loop.call_soon, is_aborted.set)
        return call.done()

    assert asyncio.run(asyncio.wait_for(main(), 30.0))


def test_a_cancelled_wait_still_leaves_no_thread_behind() -> None:
    async def main() -> None:
        is_over = threading.Event()
        loop = asyncio.get_running_loop()

        async def wait() -> None:
            async with compute_thread(CPU) as thread:
                loop.run_in_executor(thread, is_over.wait)

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        loop.call_soon(loop.call_soon, is_over.set)
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    assert not any(thread.name.startswith("trainer-compute") for thread in threading.enumerate())


# ── test progress ─────────────────────────────────────────────────────────────────────────────
# A trainer's totals grow with its steps and transfers.

STEP = {"num_tokens": 100.0, "loss": -0.25, "grad_norm": 3.0, "lr": 1e-5}


def values(progress: TrainerProgress) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("asyncrl_trainer_"), *sample.labels.values()): sample.value for sample in progress
    }


def test_tokens_are_summed_and_the_last_step_is_shown():
    progress = TrainerProgress()
    progress.stepped(STEP)
    progress.stepped(STEP | {"loss": 0.5})
    found = values(progress)
    assert (found["steps_total",], found["tokens_total",], progress.num_tokens) == (2, 200, 200)
    assert (found["loss",], found["learning_rate",]) == (0.5, 1e-5)


def test_transfers_are_summed_and_the_last_one_is_kept_for_the_line_of_the_next_step():
    progress = TrainerProgress()
    assert progress.last_publish.seconds == 0.0
    for version in (1, 2):
        progress.published(Transferred(1, version, 0.5 * version, 1000))
    found = values(progress)
    assert (found["publishes_total",], found["publish_bytes_total",], found["publish_seconds_total",]) == (2, 2000, 1.5)
    assert progress.last_publish.policy_version == 2


def test_before_the_first_step_there_is_no_loss():
    assert ("loss",) not in values(TrainerProgress())
    assert all(sample.name in METRICS for sample in TrainerProgress())


# ── test publications ─────────────────────────────────────────────────────────────────────────
# Versions: staged, offered, and sent in the order that the broker asks for.


class Everything:
    """Link, learner, publisher, uploader, other ranks and thread of a trainer, which note what happens."""

    def __init__(self, *, stores: bool = True) -> None:
        self.happened: list[Any] = []
        self.sent: asyncio.Queue[Message] = asyncio.Queue()
        self.error: TransferError | None = None
        self.progress = TrainerProgress()
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


# ── test turn ─────────────────────────────────────────────────────────────────────────────────


class EverythingTurn:
    """Link, other ranks, learner and thread of a trainer; notes what happens, and when."""

    def __init__(self) -> None:
        self.happened: list[Any] = []
        self.now_s = 0.0

    async def send(self, message: Message) -> None:
        self.happened.append(type(message) if isinstance(message, AskTurn) else message)

    def broadcast(self, work: Work) -> None:
        self.happened.append(work.kind)

    def sleep(self) -> int:
        self.now_s += 2.0
        self.happened.append("asleep")
        return 500

    def wake(self) -> None:
        self.now_s += 1.0
        self.happened.append("awake")

    async def in_thread(self, _activity: Activity, function: Any) -> Any:
        return function()

    def turns(self, *, are_shared: bool = True) -> DeviceTurns:
        both: Any = self
        return DeviceTurns(
            both,
            both if are_shared else None,
            both,
            in_thread=self.in_thread,
            occupancy=Occupancy[Activity](("waiting for the devices",)),
            clock=lambda: self.now_s,
        )


def test_a_turn_is_asked_for_and_given_back() -> None:
    async def main() -> None:
        trainer = EverythingTurn()
        turns = trainer.turns()

        async def step() -> None:
            async with turns.turn():
                trainer.happened.append("step")

        stepping = asyncio.create_task(step())
        await asyncio.sleep(0)
        assert trainer.happened == [AskTurn], "nothing before the grant"
        turns.granted()
        await stepping
        assert trainer.happened == [AskTurn, "wake", "awake", "step", "sleep", "asleep", Asleep(2.0, 500)]

    asyncio.run(main())


def test_a_turn_is_measured() -> None:
    async def main() -> None:
        trainer = EverythingTurn()
        turns = trainer.turns()
        assert turns.metrics == {}
        trainer.now_s += 2.0

        async def step() -> None:
            async with turns.turn():
                trainer.now_s += 10.0

        stepping = asyncio.create_task(step())
        await asyncio.sleep(0)
        trainer.now_s += 5.0
        turns.granted()
        await stepping
        assert turns.metrics == {
            "turn_rollout_s": 7.0,
            "turn_wait_s": 5.0,
            "turn_s": 13.0,
            "turn_moved_s": 3.0,
            "turn_bytes": 500.0,
        }

    asyncio.run(main())


def test_each_turn_needs_a_grant_of_its_own() -> None:
    async def main() -> None:
        trainer = EverythingTurn()
        turns = trainer.turns()
        turns.granted()
        async with turns.turn():
            pass
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), turns.turn():
                raise AssertionError("it was not granted")

    asyncio.run(main())


def test_the_first_turn_ends_without_having_been_asked_for() -> None:
    """The model was loaded in it."""

    async def main() -> None:
        trainer = EverythingTurn()
        assert await trainer.turns().end() == 500
        assert trainer.happened == ["sleep", "asleep", Asleep(2.0, 500)]

    asyncio.run(main())


def test_devices_of_its_own_cost_nothing() -> None:
    async def main() -> None:
        trainer = EverythingTurn()
        turns = trainer.turns(are_shared=False)
        async with turns.turn():
            pass
        assert await turns.end() == 0
        assert trainer.happened == []
        assert turns.metrics == {}

    asyncio.run(main())
