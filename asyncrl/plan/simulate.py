"""
The steady state of a plan: a cluster runs until enough versions are measured, and what it did meanwhile is summed up.

    | warm-up | measured: from the end of one step to the end of another | never reached: the run would go on |
"""

from asyncrl.errors import BrokenInvariant
from asyncrl.plan.inputs import Inputs
from asyncrl.plan.numbers import Plan
from asyncrl.plan.outcome import SimulationResult, completion_tokens, token_staleness, trajectory_staleness
from asyncrl.plan.simulated.cluster import Cluster, SimulatedReward
from asyncrl.plan.simulated.rollout import SimulatedRollout
from asyncrl.plan.simulated.trainer import SimulatedTrainer


class Simulation:
    """
    One cluster, every role of it in place.

    Args:
        steps: Optimizer steps the run is to have; None: as many as are measured, and the window of some more.
    """

    def __init__(self, plan: Plan, inputs: Inputs, steps: int | None = None) -> None:
        schedule, horizon = plan.schedule, plan.horizon
        self.plan = plan
        self.first = horizon.warm_up * schedule.steps_per_publish
        self.last = self.first + horizon.publishes * schedule.steps_per_publish
        beyond = schedule.steps_per_publish + 2 * -(-schedule.window // schedule.groups_per_step)
        self.steps = steps or self.last + beyond
        self.cluster = Cluster(plan, self.steps, inputs.lengths)
        self.reward = SimulatedReward(self.cluster, plan.reward.seconds)
        self.rollouts = [SimulatedRollout(self.cluster, f"rollout{i}", inputs.step_s) for i in range(plan.replicas)]
        self.trainer = SimulatedTrainer(self.cluster, inputs.training, self.steps)
        self.timeline: list[tuple[float, float]] = []

    def advance_to(self, steps: int) -> None:
        """
        Until so many steps are done.

        Raises:
            BrokenInvariant: Nothing more happens, and they are not.
        """
        while len(self.trainer.done) < steps:
            if not self.cluster.agenda.advance():
                raise BrokenInvariant(
                    f"the simulated run stands still after {len(self.trainer.done)} of {self.steps} steps"
                )

    def finish(self) -> None:
        """Until the run is over."""
        self.advance_to(self.steps)
        while not self.cluster.scheduler.is_finished and self.cluster.agenda.advance():
            pass

    def totals(self) -> tuple[float, float]:
        """Replica seconds with something to decode, and completions summed over seconds."""
        for rollout in self.rollouts:
            rollout.decoding.measure()
        decodings = [rollout.decoding for rollout in self.rollouts]
        return sum(decoding.busy_s for decoding in decodings), sum(decoding.running_s for decoding in decodings)

    def watch(self, every_s: float) -> None:
        """Note the completions decoded, again and again from now on, as long as something happens."""
        running = sum(rollout.decoding.num_running for rollout in self.rollouts)
        self.timeline.append((self.cluster.agenda.now_s, running))
        if self.cluster.agenda:  # Else nothing more happens, and watching would hide it.
            self.cluster.agenda.after(every_s, lambda: self.watch(every_s))


def simulate(plan: Plan, inputs: Inputs) -> SimulationResult:
    """What ``plan`` does once its pipeline is full."""
    schedule = plan.schedule
    simulation = Simulation(plan, inputs)
    simulation.advance_to(max(simulation.first, 1))
    began_s = simulation.cluster.agenda.now_s if simulation.first else 0.0
    busy_s, running_s = simulation.totals() if simulation.first else (0.0, 0.0)
    simulation.watch(max(simulation.trainer.done[-1].ended_s / 100, 1e-3))
    simulation.advance_to(simulation.last)
    seconds = simulation.cluster.agenda.now_s - began_s
    busy_after_s, running_after_s = simulation.totals()
    steps = simulation.trainer.done[simulation.first : simulation.last]
    trained_s = sum(step.ended_s - max(step.began_s, began_s) for step in steps)
    # A batch that happens to be short makes no cluster fast: seconds by token, times the tokens of an average step.
    tokens = completion_tokens(steps)
    step_s = seconds / tokens * schedule.groups_per_step * schedule.group_size * inputs.lengths.mean
    return SimulationResult(
        devices=plan.devices,
        rollout_devices=plan.rollout.devices,
        staleness=schedule.staleness,
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
