r"""
Search for the fastest settings: staleness, steps per publish, and the split of the devices into rollout and trainer.

    step time   more rollout devices: generation gets shorter, training longer
       \      /
        \_ _/
          v

For each pair of the other two settings the split is descended: from the plan's own with a stride that is halved at each
local minimum, and from the best split of the pair before with a stride of one. Every point is simulated once. Among
settings within `TIE` of the fastest, the one with the least lag wins. With ``schedule.staleness = "auto"`` the search
tries `AUTO_STALENESS` and `AUTO_CADENCES`, measures the fastest again over more versions, and compares them with all
devices in turn, synchronously.
"""

import math
from collections.abc import Sequence
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.plan.inputs import Inputs
from asyncrl.plan.result import SimulationResult
from asyncrl.plan.sections import Plan
from asyncrl.plan.simulate import simulate
from asyncrl.plan.simulated.colocated import colocated

TIE = 0.02
"""Relative difference of step times that counts as equal: about the effect of another seed."""
AUTO_STALENESS = (0.0, 0.5, 1.0, 2.0, 4.0)
AUTO_CADENCES = (1, 2, 4)
"""``schedule.steps_per_publish`` that ``auto`` tries."""
ROUGH_COMPLETIONS, ROUGH = 512, 0.25
"""
Completions that ``auto`` measures at least for every setting, and how near a finalist is by them to the fastest of
those that are measured again: the fastest by few completions is often one that was lucky.
"""
FINALISTS, COMPLETIONS, VERSIONS = 12, 4096, 16
"""Finalists at most, and what is measured for each at least: a few long completions decide about a step."""
IN_TURN_COMPLETIONS = 4 * COMPLETIONS
"""The same for all devices in turn, which is cheap to measure, and where each step waits for its longest completion."""


class SearchResult(Struct, frozen=True):
    tried: list[SimulationResult]
    """Settings with separate devices for rollouts and trainer."""
    best: SimulationResult

    def by_staleness(self) -> dict[float, list[SimulationResult]]:
        """[>= 1] results of each staleness with the best steps per publish, ordered by rollout devices."""
        cadence = self.best.steps_per_publish
        results = [result for result in self.tried if result.steps_per_publish == cadence] or self.tried
        values = sorted({result.staleness for result in results})
        return {
            value: sorted((r for r in results if r.staleness == value), key=lambda r: r.rollout_devices)
            for value in values
        }


def search(plan: Plan, inputs: Inputs) -> SearchResult:
    """Try the settings of the plan's ``search`` section, or those of ``auto``."""
    is_auto = plan.schedule.staleness == "auto"
    stalenesses = sorted(set(plan.search.staleness)) or (AUTO_STALENESS if is_auto else [plan.schedule.staleness_bound])
    cadences = AUTO_CADENCES if is_auto else [plan.schedule.steps_per_publish]
    by = plan.search.multiple_of or plan.rollout.devices_per_replica
    splits = sorted({*range(by, plan.devices, by), plan.rollout.devices})
    place, stride = splits.index(plan.rollout.devices), 1 << max(len(splits) // 4, 1).bit_length() - 1
    tried: list[SimulationResult] = []
    for cadence, staleness in product(cadences, stalenesses):
        schedule = replace(plan.schedule, staleness=staleness, steps_per_publish=cadence)
        other = replace(plan, schedule=schedule)
        publishes = max(plan.search.publishes, other.versions_with(ROUGH_COMPLETIONS) if is_auto else 0)
        found = _descend(_measured(other, publishes), inputs, splits, place, stride)
        tried += found
        place, stride = splits.index(min(found, key=lambda result: result.step_s).rollout_devices), 1
    if not is_auto:
        return SearchResult(tried, least_lag(tried))
    tried, finalists = _again(plan, inputs, tried)
    in_turn = colocated(_measured_long(plan, IN_TURN_COMPLETIONS), inputs.lengths, inputs.step_s, inputs.training)
    return SearchResult(tried, least_lag([in_turn, *finalists]))


def _again(
    plan: Plan, inputs: Inputs, tried: Sequence[SimulationResult]
) -> tuple[list[SimulationResult], list[SimulationResult]]:
    """All results, with longer measurements of the fastest in their places; and those."""
    longer: dict[int, SimulationResult] = {}
    fastest = math.inf
    for result in sorted(tried, key=lambda result: result.group_s)[:FINALISTS]:
        if result.group_s > (1 + ROUGH) * fastest:
            break
        measured = simulate(_measured_long(with_result(plan, result)), inputs)
        longer[id(result)] = measured
        fastest = min(fastest, measured.group_s)
    return [longer.get(id(result), result) for result in tried], list(longer.values())


def _measured_long(plan: Plan, completions: int = COMPLETIONS) -> Plan:
    return _measured(plan, max(VERSIONS, plan.versions_with(completions)))


def _measured(plan: Plan, publishes: int) -> Plan:
    """The plan with so many versions measured."""
    return replace(plan, horizon=replace(plan.horizon, publishes=publishes))


def least_lag(results: Sequence[SimulationResult]) -> SimulationResult:
    """The result with the least lag of those about as fast as the fastest."""
    fastest = min(result.group_s for result in results)
    equal = [result for result in results if result.group_s <= (1 + TIE) * fastest]
    return min(equal, key=lambda result: (result.lag, result.group_s))


def with_result(plan: Plan, result: SimulationResult) -> Plan:
    """The plan with the settings of one of its results."""
    schedule = replace(plan.schedule, staleness=result.staleness, steps_per_publish=result.steps_per_publish)
    return replace(plan, schedule=schedule, rollout=replace(plan.rollout, devices=result.rollout_devices))


def _descend(plan: Plan, inputs: Inputs, splits: Sequence[int], place: int, stride: int) -> list[SimulationResult]:
    """Move to the faster neighbour while there is one, then halve the stride. Returns every split tried, in order."""
    tried: dict[int, SimulationResult] = {}

    def step_s(place: int) -> float:
        if place not in tried:
            tried[place] = simulate(replace(plan, rollout=replace(plan.rollout, devices=splits[place])), inputs)
        return tried[place].step_s

    while stride:
        around = [near for near in (place - stride, place, place + stride) if 0 <= near < len(splits)]
        fastest = min(around, key=lambda near: (step_s(near), near != place))
        if fastest == place:
            stride //= 2
        place = fastest
    return [tried[near] for near in sorted(tried)]
