"""
``schedule.staleness = "auto"`` in the broker's process: asks for a choice when one is due, and passes it on.

    every few steps ─▶ process of its own: a plan fitted to the run ─▶ StalenessChoice ─▶ BrokerActor.follow
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from asyncrl.broker.actor import BrokerActor
from asyncrl.broker.scheduler import Scheduler
from asyncrl.broker.staleness_control import StalenessChoice, StalenessControl
from asyncrl.errors import AsyncrlError

LOOK_S = 1.0
"""Seconds between two looks at whether a choice is due."""

Choose = Callable[[Path], Awaitable[StalenessChoice]]
"""Fits a plan to the run in a folder; raises `AsyncrlError` if it cannot."""


async def control_staleness(
    broker: BrokerActor,
    scheduler: Scheduler,
    path: Path,
    choose: Choose,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Follow the plans of the run in ``path``, as long as no operator has set a number; until cancelled."""
    control = StalenessControl(scheduler.training.batches.next_step)
    while True:
        await sleep(LOOK_S)
        settings = scheduler.settings
        if not settings.is_auto or not control.is_due(settings.config, scheduler.training.batches.next_step):
            continue
        try:
            choice = await choose(path)
        except AsyncrlError as error:
            broker.unplanned(str(error))
        else:
            broker.follow(choice)
        control.answered(scheduler.training.batches.next_step)
