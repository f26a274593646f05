"""Trajectories damaged behind the back of their rollout, some of which reward nodes do not notice."""

import array
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from asyncrl.messages.sound import problem_of
from asyncrl.messages.spool import PutItem, SpoolRef
from asyncrl.messages.trajectory import Span, Trajectory, TrajectoryLimits, TrajectorySummary, Unit
from asyncrl.rollout.results import to_put_item
from tests.simulation.episodes import with_turns
from tests.simulation.plan import Plan


class Damage:
    """
    Damages finished trajectories before they are put, as a rollout with a bug does.

    Args:
        dice: Its own: the other decisions of a schedule stay the same with and without damage.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._dice = Random(f"damages {plan.seed}")
        self._damaged: dict[int, bool] = {}
        """Checksum of each damaged payload, and whether reward nodes see the damage."""
        self.num_refused = 0

    def is_damaged(self, ref: SpoolRef) -> bool:
        return self.is_known(ref.crc32)

    def is_known(self, crc32: int) -> bool:
        """True for the checksum of a damaged payload."""
        return crc32 in self._damaged

    def put_item(self, *arguments: Any, **options: Any) -> PutItem:
        """In place of `to_put_item`."""
        item = to_put_item(*arguments, **options)
        if self._plan.is_episodic:
            item = with_turns(item)
        if item.summary.finish_reason == "unfinished" or self._dice.random() >= self._plan.damage:
            return item
        trajectory = msgspec.msgpack.decode(item.payload, type=Trajectory)
        damaged = memoryview(msgspec.msgpack.encode(self._dice.choice(DAMAGES)(trajectory)))
        self._damaged[zlib.crc32(damaged)] = self._dice.random() >= self._plan.blindness
        return replace(item, payload=damaged)

    def problem_of(
        self, trajectory: Trajectory, unit: Unit, summary: TrajectorySummary | None, limits: TrajectoryLimits
    ) -> str:
        """In place of the check of reward nodes."""
        is_seen = self._damaged.get(zlib.crc32(msgspec.msgpack.encode(trajectory)), True)
        problem = problem_of(trajectory, unit, summary, limits) if is_seen else ""
        self.num_refused += bool(problem)
        return problem


def _with_nan(trajectory: Trajectory) -> Trajectory:
    logprobs = array.array("f", bytes(trajectory.behavior_logprobs))
    logprobs[-1] = float("nan")
    return replace(trajectory, behavior_logprobs=memoryview(logprobs).cast("B"))


def _with_negative_id(trajectory: Trajectory) -> Trajectory:
    ids = array.array("i", bytes(trajectory.completion_ids))
    ids[-1] = -1
    return replace(trajectory, completion_ids=memoryview(ids).cast("B"))


def _from_the_future(trajectory: Trajectory) -> Trajectory:
    first = trajectory.spans[0]
    return replace(trajectory, spans=[Span(1_000_000, first.start, first.end), *trajectory.spans[1:]])


def _of_another_unit(trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, unit=replace(trajectory.unit, group_id=trajectory.unit.group_id + 1))


DAMAGES: tuple[Callable[[Trajectory], Trajectory], ...] = (
    _with_nan,
    _with_negative_id,
    _from_the_future,
    _of_another_unit,
)
