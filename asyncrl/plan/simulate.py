"""
Simulates a plan's cluster through its warm-up and then measures a number of policy versions.

    | warm-up | measured: from the end of one step to the end of a later one | not simulated: rest of the run |
"""

import math

from asyncrl.errors import BrokenInvariant
from asyncrl.plan.inputs import Inputs
from asyncrl.plan.result import SimulationResult, completion_tokens, token_staleness, trajectory_staleness
from asyncrl.plan.sections import Plan
from asyncrl.plan.simulated.cluster import Cluster, SimulatedReward
from asyncrl.plan.simulated.rollout import SimulatedRollout
from asyncrl.plan.simulated.trainer import SimulatedTrainer


class Simulation:
    """A simulated cluster and its nodes. By default ``steps`` is enough that the run outlasts the measured steps."""

    def __init__(self, plan: Plan, inputs: Inputs, steps: int | None = None) -> None:
        schedule, horizon = plan.schedule, plan.horizon
        # The groups of the first window are admitted all at once: their pace is not that of the run.
        self.first = (horizon.warm_up + math.ceil(schedule.staleness_bound)) * schedule.steps_per_publish
        self.last = self.first + horizon.publishes * schedule.steps_per_publish
        beyond = schedule.steps_per_publish + 2 * -(-schedule.window // schedule.groups_per_step)
        self.steps = steps or self.last + beyond
        self.cluster = Cluster(plan, self.steps, inputs.lengths)
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
