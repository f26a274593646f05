"""Everything `asyncrl plan` answers of one plan: the baseline, the plan, the best found, and real runs beside it."""

from collections.abc import Iterator

from msgspec import Struct

from asyncrl.plan.inputs import Inputs, inputs
from asyncrl.plan.numbers import Measured, Plan
from asyncrl.plan.outcome import SimulationResult
from asyncrl.plan.plan_file import changed
from asyncrl.plan.search import Found, search
from asyncrl.plan.simulate import simulate
from asyncrl.plan.simulated.colocated import colocated


class Comparison(Struct, frozen=True, kw_only=True):
    """A real run and its prediction. Ratios are over the measured baseline's, and over the predicted one's."""

    name: str
    groups: int
    measured_s: float
    predicted_s: float
    measured_ratio: float | None
    """None where no baseline was measured."""
    predicted_ratio: float | None

    @property
    def off(self) -> float:
        """How far the prediction lies from the measurement, as a part of it: of the ratio if there is one."""
        if self.measured_ratio is None or self.predicted_ratio is None:
            return self.predicted_s / self.measured_s - 1
        return self.predicted_ratio / self.measured_ratio - 1


class Study(Struct, frozen=True, kw_only=True):
    """The answer."""

    length_mean: float
    """Completion tokens on average, after any fit."""
    window: int
    """Groups."""
    baseline: SimulationResult
    planned: SimulationResult
    found: Found | None
    """None if nothing was searched."""
    comparisons: list[Comparison]
    assumptions: list[str]

    def speed_up(self, outcome: SimulationResult) -> float:
        """Over the colocated baseline on as many devices."""
        return self.baseline.group_s / outcome.group_s


def study(plan: Plan, *, searched: bool = True) -> Study:
    """
    Simulate a plan, its baseline, its neighbours and its measured rows.

    Raises:
        ConfigError: The lengths cannot be fitted.
        DataError: There are no samples to read.
    """
    ready = inputs(plan)
    baseline, planned = colocated(plan, ready.lengths, ready.step_s, ready.training), simulate(plan, ready)
    return Study(
        length_mean=ready.lengths.mean,
        window=plan.schedule.window,
        baseline=baseline,
        planned=planned,
        found=search(plan, ready) if searched else None,
        comparisons=list(_comparisons(plan, ready, baseline, planned)),
        assumptions=plan.assumptions,
    )


def _comparisons(
    plan: Plan, ready: Inputs, baseline: SimulationResult, planned: SimulationResult
) -> Iterator[Comparison]:
    predicted = [
        _predict(plan, measured, ready) if measured.set else baseline if measured.colocated else planned
        for measured in plan.measured
    ]
    pairs = list(zip(plan.measured, predicted, strict=True))
    base = next(((m.seconds / m.groups, o.group_s) for m, o in pairs if m.colocated), None)
    for measured, outcome in pairs:
        yield Comparison(
            name=measured.name,
            groups=measured.groups,
            measured_s=measured.seconds,
            predicted_s=outcome.group_s * measured.groups,
            measured_ratio=base and base[0] * measured.groups / measured.seconds,
            predicted_ratio=base and base[1] / outcome.group_s,
        )


def _predict(plan: Plan, measured: Measured, ready: Inputs) -> SimulationResult:
    """Lengths and speeds stay those of the plan unless the row says otherwise."""
    other = changed(plan, {**measured.set, "measured": []})
    if any(key.startswith(("lengths.", "rollout.decode", "trainer.")) for key in measured.set):
        ready = inputs(other)
    if measured.colocated:
        return colocated(other, ready.lengths, ready.step_s, ready.training)
    return simulate(other, ready)
