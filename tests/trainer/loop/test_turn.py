import asyncio
from typing import Any

import pytest

from asyncrl.actor.message import Message
from asyncrl.actor.occupancy import Occupancy
from asyncrl.messages.session import AskTurn, Asleep
from asyncrl.messages.trainer import Work
from asyncrl.messages.words import Activity
from asyncrl.trainer.loop.turn import SharedDevices, Turns


class Everything:
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

    def turns(self, *, are_shared: bool = True) -> Turns:
        both: Any = self
        devices = SharedDevices(both, both, self.in_thread) if are_shared else None
        occupancy = Occupancy[Activity](("waiting for the devices",))
        return Turns(both, devices, occupancy, lambda: self.now_s)


def test_a_turn_is_asked_for_and_given_back() -> None:
    async def main() -> None:
        trainer = Everything()
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
        trainer = Everything()
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
        trainer = Everything()
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
        trainer = Everything()
        assert await trainer.turns().end() == 500
        assert trainer.happened == ["sleep", "asleep", Asleep(2.0, 500)]

    asyncio.run(main())


def test_devices_of_its_own_cost_nothing() -> None:
    async def main() -> None:
        trainer = Everything()
        turns = trainer.turns(are_shared=False)
        async with turns.turn():
            pass
        assert await turns.end() == 0
        assert trainer.happened == []
        assert turns.metrics == {}

    asyncio.run(main())
