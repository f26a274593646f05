"""The report of `asyncrl plan`: simulated baseline, plan and best split, and measured runs beside their predictions."""

from collections.abc import Iterator

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.plan.inputs import Inputs, inputs
from asyncrl.plan.plan_file import changed
from asyncrl.plan.result import SimulationResult
from asyncrl.plan.search import SearchResult, search, with_result
from asyncrl.plan.sections import Measured, Plan
from asyncrl.plan.simulate import simulate
from asyncrl.plan.simulated.colocated import colocated


class Comparison(Struct, frozen=True, kw_only=True):
    """A measured run and its prediction. Ratios are speed-ups over the measured and over the predicted baseline."""

    name: str
    groups: int
    measured_s: float
    predicted_s: float
    measured_ratio: float | None
    """None if no baseline was measured."""
    predicted_ratio: float | None

    @property
    def off(self) -> float:
        """Relative error of the predicted ratio, or of the predicted seconds if there is no ratio."""
        if self.measured_ratio is None or self.predicted_ratio is None:
            return self.predicted_s / self.measured_s - 1
        return self.predicted_ratio / self.measured_ratio - 1


class PlanReport(Struct, frozen=True, kw_only=True):
    length_mean: float
    """Mean completion tokens, after any fit."""
    window: int
    """Groups."""
    baseline: SimulationResult
    planned: SimulationResult
    found: SearchResult | None
    """None without a search."""
    comparisons: list[Comparison]
    assumptions: list[str]

    def speed_up(self, result: SimulationResult) -> float:
        """Speed-up over the colocated baseline, per group."""
        return self.baseline.group_s / result.group_s


def make_report(plan: Plan, *, searched: bool = True) -> PlanReport:
    """
    Simulate a plan, its baseline and measured rows, and search for the best settings.

    With ``schedule.staleness = "auto"`` the plan is what the search finds. Raises as `inputs`, and `ConfigError` for
    such a plan without a search.
    """
    is_auto = plan.schedule.staleness == "auto"
    if is_auto and not searched:
        raise ConfigError(
            "schedule.staleness is 'auto', which the search finds: leave --no-search out, or give a number"
        )
    ready = inputs(plan)
    baseline = colocated(plan, ready.lengths, ready.step_s, ready.training)
    found = search(plan, ready) if searched else None
    chosen = with_result(plan, found.best) if found and is_auto else plan
    # The search measures fewer versions than the plan's horizon has.
    planned = simulate(chosen, ready) if chosen.trainer_devices else baseline
    return PlanReport(
        length_mean=ready.lengths.mean,
        window=chosen.schedule.window,
        baseline=baseline,
        planned=planned,
        found=found,
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
    base = next(((m.seconds / m.groups, result.group_s) for m, result in pairs if m.colocated), None)
    for measured, result in pairs:
        yield Comparison(
            name=measured.name,
            groups=measured.groups,
            measured_s=measured.seconds,
            predicted_s=result.group_s * measured.groups,
            measured_ratio=base and base[0] * measured.groups / measured.seconds,
            predicted_ratio=base and base[1] / result.group_s,
        )


def _predict(plan: Plan, measured: Measured, ready: Inputs) -> SimulationResult:
    """Simulate the plan with the row's changes; lengths and speeds are kept unless the row changes them."""
    other = changed(plan, {**measured.set, "measured": []})
    if any(key.startswith(("lengths.", "rollout.decode", "trainer.")) for key in measured.set):
        ready = inputs(other)
    if measured.colocated:
        return colocated(other, ready.lengths, ready.step_s, ready.training)
    return simulate(other, ready)
