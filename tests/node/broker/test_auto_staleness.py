"""The broker's process asks for a staleness when it is due, and goes on if there is none."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from asyncrl.broker.actor import BrokerActor
from asyncrl.broker.staleness_control import StalenessChoice, steps_between
from asyncrl.errors import AsyncrlError
from asyncrl.node.broker.auto_staleness import Choose, control_staleness
from tests.broker.driver import a_config, a_scheduler

AUTO = a_config(run={"steps": 60}, schedule={"groups_per_step": 2, "group_size": 2, "staleness": "auto"})
CHOICE = StalenessChoice(2.0, 1.0, "because")


class Broker:
    """Records what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def follow(self, choice: StalenessChoice) -> None:
        self.told.append(choice)

    def unplanned(self, cause: str) -> None:
        self.told.append(cause)


def played(choose: Choose, *, looks: int = 3, prepare: Callable[[object], None] = lambda _: None) -> list[object]:
    """What the broker is told while a step is trained between two looks."""
    scheduler, broker, left = a_scheduler(AUTO), Broker(), looks
    prepare(scheduler)

    async def sleep(seconds: float) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise asyncio.CancelledError
        scheduler.training.batches.next_step += 1

    async def main() -> None:
        await control_staleness(cast("BrokerActor", broker), scheduler, Path("run"), choose, sleep)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    return broker.told


async def chosen(path: Path) -> StalenessChoice:
    assert path == Path("run")
    return CHOICE


async def failed(_: Path) -> StalenessChoice:
    raise AsyncrlError("no such program")


def test_it_asks_once_until_as_many_steps_have_passed_again() -> None:
    every = steps_between(AUTO.schedule)
    assert played(chosen, looks=every - 1) == []
    assert played(chosen, looks=every) == [CHOICE]
    assert played(chosen, looks=2 * every) == [CHOICE, CHOICE]


def test_a_plan_that_cannot_be_fitted_is_told_and_asked_for_again_later() -> None:
    assert played(failed, looks=2 * steps_between(AUTO.schedule)) == ["no such program"] * 2


def test_nothing_is_asked_after_an_operator_has_decided() -> None:
    def decide(scheduler: object) -> None:
        scheduler.settings.apply({"schedule.staleness": 0.0}, "alice")  # type: ignore[attr-defined]

    assert played(chosen, looks=60, prepare=decide) == []
