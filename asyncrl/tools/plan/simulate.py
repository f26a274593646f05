"""
Simulates a plan's cluster through its warm-up, measures a number of policy versions, and searches for the fastest
settings.

    | warm-up | measured: from the end of one step to the end of a later one | not simulated: rest of the run |
"""

import math
from collections.abc import Sequence
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.errors import BrokenInvariant
from asyncrl.tools.plan.plan_file import Inputs
from asyncrl.tools.plan.sections import Plan
from asyncrl.tools.plan.simulated.cluster import (
    SimulatedCluster,
    SimulatedReward,
    SimulatedTrainer,
    SimulationResult,
    completion_tokens,
    token_staleness,
    trajectory_staleness,
)
from asyncrl.tools.plan.simulated.rollout import SimulatedRollout, colocated


class Simulation:
    """A simulated cluster and its nodes. By default ``steps`` is enough that the run outlasts the measured steps."""

    def __init__(self, plan: Plan, inputs: Inputs, steps: int | None = None) -> None:
        schedule, horizon = plan.schedule, plan.horizon
        # The groups of the first window are admitted all at once: their pace is not that of the run.
        self.first = (horizon.warm_up + math.ceil(schedule.staleness_bound)) * schedule.steps_per_publish
        self.last = self.first + horizon.publishes * schedule.steps_per_publish
        beyond = schedule.steps_per_publish + 2 * -(-schedule.window // schedule.groups_per_step)
        self.steps = steps or self.last + beyond
        self.cluster = SimulatedCluster(plan, self.steps, inputs.lengths)
        self.reward = SimulatedReward(self.cluster, plan.reward.seconds, plan.reward.at_once)
        self.rollouts = [SimulatedRollout(self.cluster, f"rollout{i}", inputs.step_s) for i in range(plan.replicas)]
        self.trainer = SimulatedTrainer(self.cluster, inputs.training, self.steps)
        self.timeline: list[tuple[float, float]] = []

    def advance_to(self, steps: int) -> None:
        """Run until ``steps`` steps are done. Raises BrokenInvariant if no event is left before that."""
        while len(self.trainer.done) < steps:
            if not self.cluster.events.advance():
                raise BrokenInvariant(
                    f"the simulated run stands still after {len(self.trainer.done)} of {self.steps} steps"
                )

    def totals(self) -> tuple[float, float]:
        """Replica seconds with something to decode, and completion seconds being decoded, summed over replicas."""
        engines = [rollout.engine for rollout in self.rollouts]
        for engine in engines:
            engine.catch_up()
        return sum(engine.busy_s for engine in engines), sum(engine.running_s for engine in engines)

    def watch(self, every_s: float) -> None:
        """Add the number of running completions to the timeline now and every ``every_s`` while events are left."""
        running = sum(rollout.engine.num_running for rollout in self.rollouts)
        self.timeline.append((self.cluster.events.now_s, running))
        if self.cluster.events:  # With no other event left, another one would hide that the run stands still.
            self.cluster.events.after(every_s, lambda: self.watch(every_s))


def simulate(plan: Plan, inputs: Inputs) -> SimulationResult:
    """Measure the steady state of ``plan``."""
    schedule = plan.schedule
    simulation = Simulation(plan, inputs)
    simulation.advance_to(max(simulation.first, 1))
    began_s = simulation.cluster.events.now_s if simulation.first else 0.0
    busy_s, running_s = simulation.totals() if simulation.first else (0.0, 0.0)
    simulation.watch(max(simulation.trainer.done[-1].ended_s / 100, 1e-3))
    simulation.advance_to(simulation.last)
    seconds = simulation.cluster.events.now_s - began_s
    busy_after_s, running_after_s = simulation.totals()
    steps = simulation.trainer.done[simulation.first : simulation.last]
    trained_s = sum(step.ended_s - max(step.began_s, began_s) for step in steps)
    # Seconds per token times mean tokens per step: batches that happen to be short do not make a cluster faster.
    tokens = completion_tokens(steps)
    step_s = seconds / tokens * schedule.groups_per_step * schedule.group_size * inputs.lengths.mean
    return SimulationResult(
        devices=plan.devices,
        rollout_devices=plan.rollout.devices,
        staleness=schedule.staleness_bound,
        steps_per_publish=schedule.steps_per_publish,
        step_s=step_s,
        group_s=step_s / schedule.groups_per_step,
        rollout_idle=max(1 - (busy_after_s - busy_s) / (seconds * plan.replicas), 0.0),
        running=(running_after_s - running_s) / max(busy_after_s - busy_s, 1e-9),
        trainer_idle=max(1 - trained_s / seconds, 0.0),
        tokens_per_s=tokens / seconds,
        token_staleness=token_staleness(steps),
        trajectory_staleness=trajectory_staleness(steps),
        peak_open=simulation.cluster.scheduler.window.peak,
        timeline=simulation.timeline,
    )


# ── search ────────────────────────────────────────────────────────────────────────────────────
# Search for the fastest settings: staleness, steps per publish, and the split of the devices into rollout and
# trainer.
#
#     step time   more rollout devices: generation gets shorter, training longer
#        \      /
#         \_ _/
#           v
#
# For each pair of the other two settings the split is descended: from the plan's own with a stride that is halved at
# each local minimum, and from the best split of the pair before with a stride of one. Every point is simulated once.
# Among settings within `TIE` of the fastest, the one with the least lag wins. With ``schedule.staleness = "auto"``
# the search tries `AUTO_STALENESS` and `AUTO_CADENCES`, measures the fastest again over more versions, and compares
# them with all devices in turn, synchronously.

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
"""Completions measured for all devices in turn: that is cheap, and each step waits for its longest completion."""


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
