"""
The end of a run, seen from its directory: a node that is started after the broker has left hears of it from nobody.

A service manager may restart a node at the very end of a run, or start every service of a run that is complete.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from asyncrl.actor.waiting import OtherCameFirst, unless
from asyncrl.files.lock import is_locked
from asyncrl.log import get_logger
from asyncrl.observe.run_directory import RunDirectory

log = get_logger()

LOOK_S = 2.0
QUIET_LOOKS = 5
"""Looks in a row that find the run complete and no broker. One that extends the run needs seconds to start."""


def is_over(directory: RunDirectory) -> bool:
    """True if the run is complete, and no broker serves it."""
    return directory.finished_summary() is not None and not is_locked(directory.lock)


async def until_over(
    directory: RunDirectory,
    *,
    is_over: Callable[[RunDirectory], bool] = is_over,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Return once the run has been complete, without a broker, for `QUIET_LOOKS` looks."""
    looks = 0
    while looks < QUIET_LOOKS:
        await sleep(LOOK_S)
        looks = looks + 1 if is_over(directory) else 0


async def unless_over(run_dir: Path | None, work: Awaitable[None]) -> None:
    """Await ``work``, but not beyond the end of the run in ``run_dir``; None if that is on another machine."""
    if run_dir is None:
        await work
        return
    try:
        await unless(until_over(RunDirectory(run_dir)), work)
    except OtherCameFirst:
        log.info("run.over", path=str(run_dir))
