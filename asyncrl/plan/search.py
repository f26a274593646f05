r"""
The best split of the devices over rollout and trainer, for each staleness.

    step time   more rollout devices: generation gets shorter, training longer
       \      /
        \_ _/
          v

One valley, so the search walks downhill from the plan's own split, in strides that get shorter. Every point is a
simulation; none is done twice. Of plans within `TIE` of the fastest the least stale one is best.
"""

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.plan.inputs import Inputs
from asyncrl.plan.numbers import Plan
from asyncrl.plan.outcome import SimulationResult
from asyncrl.plan.simulate import simulate

TIE = 0.02
"""Part of a step time below which two plans count as equally fast: what another seed may change."""


class Found(Struct, frozen=True):
    """All that was tried, and what came out best."""

    tried: list[SimulationResult]
    best: SimulationResult

    def by_staleness(self) -> dict[float, list[SimulationResult]]:
        """[>= 1] outcomes by split of each staleness tried."""
        values = sorted({outcome.staleness for outcome in self.tried})
        return {
            value: sorted((o for o in self.tried if o.staleness == value), key=lambda o: o.rollout_devices)
            for value in values
        }


class _Valley:
    """Simulations of one staleness by split."""

    def __init__(self, plan: Plan, inputs: Inputs, splits: list[int]) -> None:
        self._plan = plan
        self._inputs = inputs
        self._splits = splits
        self.seen: dict[int, SimulationResult] = {}

    def descend(self, place: int) -> None:
        """From ``place`` to a lower neighbour as long as there is one, then the same with half the stride."""
        stride = 1 << max(len(self._splits) // 4, 1).bit_length() - 1
        while stride:
            around = [near for near in (place - stride, place, place + stride) if 0 <= near < len(self._splits)]
            lowest = min(around, key=lambda near: (self._step_s(near), near != place))
            if lowest == place:
                stride //= 2
            place = lowest

    def _step_s(self, place: int) -> float:
        if place not in self.seen:
            rollout = replace(self._plan.rollout, devices=self._splits[place])
            self.seen[place] = simulate(replace(self._plan, rollout=rollout), self._inputs)
        return self.seen[place].step_s


def search(plan: Plan, inputs: Inputs) -> Found:
    """Try splits and staleness as the plan's ``search`` says."""
    short = replace(plan, horizon=replace(plan.horizon, publishes=plan.search.publishes))
    splits = _splits(plan)
    tried: list[SimulationResult] = []
    for staleness in sorted(set(plan.search.staleness)) or [plan.schedule.staleness]:
        valley = _Valley(replace(short, schedule=replace(plan.schedule, staleness=staleness)), inputs, splits)
        valley.descend(splits.index(plan.rollout.devices))
        tried += [valley.seen[near] for near in sorted(valley.seen)]
    fastest = min(outcome.step_s for outcome in tried)
    equal = [outcome for outcome in tried if outcome.step_s <= (1 + TIE) * fastest]
    return Found(tried, min(equal, key=lambda outcome: (outcome.staleness, outcome.step_s)))


def _splits(plan: Plan) -> list[int]:
    """Rollout devices to choose from; the plan's own are among them."""
    by = plan.search.multiple_of or plan.rollout.devices_per_replica
    return sorted({*range(by, plan.devices, by), plan.rollout.devices})
