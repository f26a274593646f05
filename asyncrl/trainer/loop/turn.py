"""
Turns of a trainer at devices that it shares with rollouts.

    AskTurn ─▶ … ─▶ Wake ─▶ memory comes to the devices ─▶ step, publish, checkpoint ─▶ memory goes ─▶ Asleep
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from asyncrl.actor.failpoints import reach
from asyncrl.actor.link import Link
from asyncrl.actor.occupancy import Occupancy
from asyncrl.messages.session import AskTurn, Asleep
from asyncrl.messages.trainer import Work
from asyncrl.messages.words import Activity
from asyncrl.trainer.ranks.rank_hub import OtherRanks
from asyncrl.trainer.trainable import Sleepable

MOVING: Activity = "waiting for the devices"


class SharedDevices:
    """
    The devices of all ranks, which a learner takes and leaves.

    Args:
        in_thread: Runs a function on the thread that computes, given the activity that it counts as.
    """

    def __init__(self, learner: Sleepable, others: OtherRanks, in_thread: Callable[..., Awaitable[Any]]) -> None:
        self._learner = learner
        self._others = others
        self._in_thread = in_thread

    async def take(self) -> None:
        self._others.broadcast(Work("wake", 0))
        await self._in_thread(MOVING, self._learner.wake)
        reach("trainer.woken")

    async def leave(self) -> int:
        """Returns the number of bytes moved to host memory."""
        self._others.broadcast(Work("sleep", 0))
        num_bytes: int = await self._in_thread(MOVING, self._learner.sleep)
        reach("trainer.asleep")
        return num_bytes


class Turns:
    """
    Waits for turns, and measures them.

    Args:
        devices: None if they are the trainer's own: turns then cost nothing.
        occupancy: Counts the time between the request and the grant.
    """

    def __init__(
        self, link: Link, devices: SharedDevices | None, occupancy: Occupancy[Activity], clock: Callable[[], float]
    ) -> None:
        self._link = link
        self._devices = devices
        self._occupancy = occupancy
        self._clock = clock
        self._granted = asyncio.Event()
        self._left_s = clock()
        """Clock time at which the last turn ended."""
        self._metrics: dict[str, float] = {}

    @property
    def metrics(self) -> Mapping[str, float]:
        """
        Metrics of the last turn, and of the time before it; empty if the devices are the trainer's own.

        ``turn_rollout_s``: from the end of the turn before to the grant. ``turn_wait_s``: of it from the request.
        ``turn_s``: from the grant to the end. ``turn_moved_s``: of it to move memory. ``turn_bytes``: moved to host
        memory at the end.
        """
        return self._metrics

    def granted(self) -> None:
        """The broker has granted the turn that was asked for."""
        self._granted.set()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Use the devices for the time of the block."""
        if self._devices is None:
            yield
            return
        asked_s = self._clock()
        await self._link.send(AskTurn())
        with self._occupancy.doing(MOVING):
            await self._granted.wait()
        self._granted.clear()
        granted_s, rollout_s = self._clock(), self._clock() - self._left_s
        await self._devices.take()
        taken_s = self._clock()
        yield
        leaving_s = self._clock()
        num_bytes = await self.end()
        self._metrics = {
            "turn_rollout_s": rollout_s,
            "turn_wait_s": granted_s - asked_s,
            "turn_s": self._left_s - granted_s,
            "turn_moved_s": (taken_s - granted_s) + (self._left_s - leaving_s),
            "turn_bytes": float(num_bytes),
        }

    async def end(self) -> int:
        """End the turn, or the first one, in which the model was loaded. Returns the number of bytes moved."""
        if self._devices is None:
            return 0
        began_s = self._clock()
        num_bytes = await self._devices.leave()
        self._left_s = self._clock()
        await self._link.send(Asleep(self._left_s - began_s, num_bytes))
        return num_bytes
