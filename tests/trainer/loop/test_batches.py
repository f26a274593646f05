"""The next batch: requested once, fetched in the background, refused by any rank."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncrl.actor.message import Message
from asyncrl.actor.occupancy import Occupancy
from asyncrl.config.run_file import decode
from asyncrl.errors import BrokenInvariant
from asyncrl.messages.trainer import Batch, Refusal, Take
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.words import Activity
from asyncrl.trainer.loop import batches as module
from asyncrl.trainer.loop.batches import Batches
from asyncrl.trainer.loop.fetching import FetchedStep

NAN, LOST = Refusal(Unit(0, 0), "NaN"), Refusal(Unit(1, 0), "the spool is lost")


class Everything:
    """Link and other ranks of a trainer. Its own part of each step is ``fetched``."""

    def __init__(self) -> None:
        self.happened: list[Any] = []
        self.others_refuse: list[Refusal] = []
        self.fetched: Any = FetchedStep(None, [])  # type: ignore[arg-type]
        both: Any = self
        config = decode({"model": {"path": "m"}, "data": {"train": "d"}})
        self.batches = Batches(
            both,
            both,
            both,
            learner=both,
            vocab_size=8,
            config=config,
            others=both,
            occupancy=Occupancy[Activity](("fetching",)),
        )

    async def send(self, message: Message) -> None:
        self.happened.append(message)

    def broadcast(self, batch: Batch) -> None:
        self.happened.append(batch)

    async def refused(self, _step: int) -> list[Refusal]:
        return self.others_refuse

    async def fetch_step(self, *_arguments: Any, **_options: Any) -> FetchedStep:
        return self.fetched


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Everything:
    made = Everything()
    monkeypatch.setattr(module, "fetch_step", made.fetch_step)
    return made


def play(act: Callable[[asyncio.TaskGroup], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10.0), asyncio.TaskGroup() as tasks:
            await act(tasks)

    asyncio.run(main())


def test_a_batch_is_asked_for_and_passed_on_to_the_other_ranks(trainer: Everything) -> None:
    async def act(tasks: asyncio.TaskGroup) -> None:
        trainer.batches.request(4, tasks)
        await asyncio.sleep(0)
        assert trainer.happened == [Take(4)]
        trainer.batches.arrived(Batch(4, [], 0.5))
        assert (await trainer.batches.upcoming).lr == 0.5
        assert trainer.happened == [Take(4), Batch(4, [], 0.5)]

    play(act)


def test_a_batch_that_comes_twice_or_unasked_changes_nothing(trainer: Everything) -> None:
    async def act(tasks: asyncio.TaskGroup) -> None:
        trainer.batches.arrived(Batch(3, []))
        trainer.batches.request(4, tasks)
        await asyncio.sleep(0)
        for lr in (0.5, 0.7):
            trainer.batches.arrived(Batch(4, [], lr))
        assert (await trainer.batches.upcoming).lr == 0.5
        trainer.batches.arrived(Batch(4, [], 0.9))
        assert (await trainer.batches.upcoming).lr == 0.5

    play(act)


def test_what_any_rank_refuses_is_refused_once(trainer: Everything) -> None:
    trainer.fetched = FetchedStep(None, [NAN])  # type: ignore[arg-type]
    trainer.others_refuse = [LOST, NAN]

    async def act(tasks: asyncio.TaskGroup) -> None:
        trainer.batches.request(0, tasks)
        await asyncio.sleep(0)
        trainer.batches.arrived(Batch(0, []))
        assert (await trainer.batches.upcoming).refused == [NAN, LOST]

    play(act)


def test_a_step_that_begins_before_its_request_is_a_mistake(trainer: Everything) -> None:
    with pytest.raises(BrokenInvariant, match="before its batch was requested"):
        trainer.batches.upcoming  # noqa: B018


def test_a_step_is_taken_once_and_not_kept(trainer: Everything) -> None:
    async def act(tasks: asyncio.TaskGroup) -> None:
        trainer.batches.request(4, tasks)
        await asyncio.sleep(0)
        trainer.batches.arrived(Batch(4, [], 0.5))
        assert (await trainer.batches.take()).lr == 0.5
        with pytest.raises(BrokenInvariant):
            trainer.batches.upcoming  # noqa: B018

    play(act)


def test_a_request_can_be_cancelled(trainer: Everything) -> None:
    async def act(tasks: asyncio.TaskGroup) -> None:
        trainer.batches.cancel()
        trainer.batches.request(0, tasks)
        await asyncio.sleep(0)
        trainer.batches.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trainer.batches.upcoming

    play(act)
