r"""
Search for the fastest split of the devices into rollout and trainer, for each staleness.

    step time   more rollout devices: generation gets shorter, training longer
       \      /
        \_ _/
          v

The curve has one minimum, so the search descends from the plan's own split with a stride that is halved at each local
minimum. Every point is simulated once. Among plans within `TIE` of the fastest, the one with the least staleness wins.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.plan.inputs import Inputs
from asyncrl.plan.result import SimulationResult
from asyncrl.plan.sections import Plan
from asyncrl.plan.simulate import simulate

TIE = 0.02
"""Relative difference of step times that counts as equal: about the effect of another seed."""


class SearchResult(Struct, frozen=True):
    tried: list[SimulationResult]
    best: SimulationResult

    def by_staleness(self) -> dict[float, list[SimulationResult]]:
        """[>= 1] results of each staleness, ordered by rollout devices."""
        values = sorted({result.staleness for result in self.tried})
        return {
            value: sorted((r for r in self.tried if r.staleness == value), key=lambda r: r.rollout_devices)
            for value in values
        }


def search(plan: Plan, inputs: Inputs) -> SearchResult:
    """Try the splits and staleness values of the plan's ``search`` section."""
    short = replace(plan, horizon=replace(plan.horizon, publishes=plan.search.publishes))
    by = plan.search.multiple_of or plan.rollout.devices_per_replica
    splits = sorted({*range(by, plan.devices, by), plan.rollout.devices})
    tried: list[SimulationResult] = []
    for staleness in sorted(set(plan.search.staleness)) or [plan.schedule.staleness]:
        tried += _descend(replace(short, schedule=replace(plan.schedule, staleness=staleness)), inputs, splits)
    fastest = min(result.step_s for result in tried)
    equal = [result for result in tried if result.step_s <= (1 + TIE) * fastest]
    return SearchResult(tried, min(equal, key=lambda result: (result.staleness, result.step_s)))


def _descend(plan: Plan, inputs: Inputs, splits: Sequence[int]) -> list[SimulationResult]:
    """Move to the faster neighbour while there is one, then halve the stride. Returns every split tried, in order."""
    tried: dict[int, SimulationResult] = {}

    def step_s(place: int) -> float:
        if place not in tried:
            tried[place] = simulate(replace(plan, rollout=replace(plan.rollout, devices=splits[place])), inputs)
        return tried[place].step_s

    place = splits.index(plan.rollout.devices)
    stride = 1 << max(len(splits) // 4, 1).bit_length() - 1
    while stride:
        around = [near for near in (place - stride, place, place + stride) if 0 <= near < len(splits)]
        fastest = min(around, key=lambda near: (step_s(near), near != place))
        if fastest == place:
            stride //= 2
        place = fastest
    return [tried[near] for near in sorted(tried)]
