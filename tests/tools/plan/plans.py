"""Small plans for tests; the results of `a_plan` can be computed by hand."""

from typing import Any

from asyncrl.tools.plan.plan_file import changed, decode, inputs
from asyncrl.tools.plan.sections import Plan
from asyncrl.tools.plan.simulate import Simulation, simulate
from asyncrl.tools.plan.simulated.cluster import SimulationResult


def a_plan(changes: dict[str, Any] | None = None) -> Plan:
    """
    One rollout device and one trainer device; a step takes two groups of two completions of 100 tokens.

    A decode step takes 0.1 s for any number of completions, and four fit, so a batch is generated in 10 s. Its 400
    tokens are trained in 4 s.
    """
    raw: dict[str, Any] = {
        "devices": 2,
        "lengths": {"median": 100},
        "rollout": {"devices": 1, "slots": 4, "decode": [[1, 10]], "prefill_tokens_per_s": 1000, "kv": "keep"},
        "trainer": {"speeds": [{"devices": 1, "tokens_per_s": 100}]},
        "schedule": {"groups_per_step": 2, "group_size": 2, "staleness": 0.0},
        "horizon": {"publishes": 4},
    }
    return changed(decode(raw), changes or {})


def spread_out(changes: dict[str, Any] | None = None) -> Plan:
    """Four replicas and random lengths."""
    plan = {
        "devices": 8,
        "lengths": {"median": 100, "sigma": 1.0, "max_tokens": 1000},
        "rollout.devices": 4,
        "rollout.slots": 16,
        "rollout.decode": [[1, 10], [16, 80]],
        "schedule": {"groups_per_step": 8, "group_size": 4, "staleness": 0.5, "steps_per_publish": 2},
        "trainer.speeds": [{"devices": 4, "tokens_per_s": 300}],
        "publish.seconds": 1.0,
        "publish.pause_s": 0.5,
    }
    return a_plan(plan | (changes or {}))


def outcome(plan: Plan) -> SimulationResult:
    return simulate(plan, inputs(plan))


def finished(plan: Plan, steps: int) -> Simulation:
    """A simulation run until the scheduler has finished."""
    simulation = Simulation(plan, inputs(plan), steps)
    simulation.advance_to(steps)
    while not simulation.cluster.scheduler.is_finished and simulation.cluster.events.advance():
        pass
    return simulation
