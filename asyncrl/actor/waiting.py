"""Wait for one thing, unless another comes first."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Result = TypeVar("Result")


class OtherCameFirst(Exception):
    """Outcome of `unless`: what was awaited has been cancelled."""


async def unless(other: Awaitable[object], waiting: Awaitable[Result]) -> Result:
    """
    Await ``waiting``; cancels it, and raises `OtherCameFirst`, as soon as ``other`` is done. Both end here.

    An error of either is raised as it is.
    """
    tasks = asyncio.ensure_future(waiting), asyncio.ensure_future(other)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            tasks[1].result()
            raise OtherCameFirst
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
