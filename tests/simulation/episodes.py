"""
Rollouts whose trajectories are episodes: each turn is put when it ends, and some environments cannot be brought back.

    turn ─▶ put ─▶ turn ─▶ put ─▶ ...                     lease with stored turns ─▶ fetch ─┬▶ the next turn
                                                                                            └▶ StartedOver ─▶ turn 0

The tokens are those of `SimEngine`, cut into turns of `WRITTEN` tokens, the last one the rest, with `CONTEXT` of the
environment before each but the first.
"""

import array
import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from asyncrl.messages.rollout import Lease, ResumePoint, StartedOver
from asyncrl.messages.sound import summary_of
from asyncrl.messages.spool import PutItem
from asyncrl.messages.trajectory import FROM_PROMPT, Trajectory, TrajectoryLimits, Turn, Unit
from asyncrl.rollout.actor import RolloutActor
from asyncrl.rollout.generations import Generations
from tests.simulation.plan import MAX_TURNS

WRITTEN, CONTEXT = 2, 1


def with_turns(item: PutItem) -> PutItem:
    """The same trajectory as an episode."""
    trajectory = msgspec.msgpack.decode(item.payload, type=Trajectory)
    num_tokens = trajectory.completion_ids.nbytes // 4
    turns = [
        Turn(
            parent=place if start else FROM_PROMPT,
            num_context=CONTEXT if start else 0,
            num_written=min(WRITTEN, num_tokens - start),
        )
        for place, start in enumerate(range(0, num_tokens, WRITTEN), FROM_PROMPT)
    ]
    context = array.array("i", [1000 + place for place, turn in enumerate(turns) for _ in range(turn.num_context)])
    episode = replace(trajectory, turns=turns, context_ids=memoryview(context).cast("B"))
    return replace(item, summary=summary_of(episode), payload=memoryview(msgspec.msgpack.encode(episode)))


class EpisodeGenerations(Generations):
    """Accepts stored turns where it resumes, though its own work is single completions."""

    def limits(self, lease: Lease, index: int) -> TrajectoryLimits:
        return replace(super().limits(lease, index), max_turns=MAX_TURNS)


class EpisodeActor(RolloutActor):
    """
    Puts each turn when it ends, and begins some episodes anew.

    Args:
        is_lost: Draws whether an environment cannot be brought back.
        started_over: Called with the unit and lease id of each episode that begins anew.
    """

    def __init__(
        self,
        *arguments: Any,
        generations: Generations,
        is_lost: Callable[[], bool],
        started_over: Callable[[Unit, int], None],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, generations=generations, **options)
        self._has_turn = asyncio.Event()
        self._is_lost = is_lost
        self._say_started_over = started_over

    def turn_ended(self) -> None:
        """A turn of any episode ended."""
        self._has_turn.set()

    async def _put_progress(self) -> None:
        """Put what is new after each turn, and every ``progress_every_s``."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.progress_every_s or None):
                    await self._has_turn.wait()
            self._has_turn.clear()
            if items := self._generations.progress():
                await self._put(items)

    async def _fetch(self, lease: Lease, item: ResumePoint) -> Any:
        prefix = await super()._fetch(lease, item)
        if not self._is_lost():
            return prefix
        unit = Unit(lease.group_id, item.index, lease.split)
        self._say_started_over(unit, lease.lease_id)
        num_tokens = len(prefix.completion.completion_ids)
        await self._broker.send(StartedOver(unit, lease.lease_id, num_tokens, "its environment is gone"))
        return None
