"""
The synchronous baseline: in turn, all devices generate P T groups and all devices train on them.

    | all replicas generate ........ the longest completion | all devices train T steps | other |

Staleness is 0, and every replica waits for the longest completion.
"""

import random

from asyncrl.messages.trajectory import Unit
from asyncrl.plan.lengths import Lengths
from asyncrl.plan.result import SimulationResult
from asyncrl.plan.sections import Plan
from asyncrl.plan.simulated.engine import Finished, Job, SimulatedEngine
from asyncrl.plan.simulated.event_queue import EventQueue
from asyncrl.plan.speeds import Line, TrainingSpeed


class Generation:
    """Generation of P T groups, spread round-robin over all replicas."""

    def __init__(self, plan: Plan, lengths: Lengths, step_s: Line, first_group: int) -> None:
        rollout, schedule = plan.rollout, plan.schedule
        self.events = EventQueue()
        self.tokens = 0
        self._num_open = 0
        prefill_s = 1 / rollout.prefill_tokens_per_s
        self.engines = [
            SimulatedEngine(self.events, rollout.slots, step_s, prefill_s, self._finished)
            for _ in range(plan.devices // rollout.devices_per_replica)
        ]
        for engine in self.engines:
            engine.swap(0, 0.0, recompute=False)
        for group_id in range(first_group, first_group + plan.groups_per_publish):
            rng = random.Random(f"{plan.horizon.seed}/{group_id}")
            completions = lengths.group(rng, schedule.group_size)
            self.tokens += sum(completions)
            self._num_open += len(completions)
            self.engines[group_id % len(self.engines)].add(
                Job(Unit(group_id, index), 0, length, 0 if index else rollout.prompt_tokens)
                for index, length in enumerate(completions)
            )
        while self._num_open and self.events.advance():
            pass
        self.seconds = self.events.now_s

    def _finished(self, finished: Finished) -> None:
        self._num_open -= 1


def generate_s(plan: Plan, lengths: Lengths, step_s: Line) -> float:
    """Mean seconds in which all devices generate the groups of one publish."""
    generations = _generations(plan, lengths, step_s)
    return sum(generation.seconds for generation in generations) / len(generations)


def colocated(plan: Plan, lengths: Lengths, step_s: Line, training: TrainingSpeed) -> SimulationResult:
    """Simulate the baseline of a plan on the same number of devices."""
    generations = _generations(plan, lengths, step_s)
    schedule, rollout = plan.schedule, plan.rollout
    completions = plan.groups_per_publish * schedule.group_size
    tokens = sum(generation.tokens for generation in generations) / len(generations)
    generate = sum(generation.seconds for generation in generations) / len(generations)
    train_s = training.seconds(tokens + completions * rollout.prompt_tokens, plan.devices)
    total_s = generate + train_s + plan.synchronous.other_s
    busy_s = sum(engine.busy_s for g in generations for engine in g.engines)
    running_s = sum(engine.running_s for g in generations for engine in g.engines)
    return SimulationResult(
        devices=plan.devices,
        rollout_devices=plan.devices,
        staleness=0.0,
        steps_per_publish=schedule.steps_per_publish,
        step_s=total_s / schedule.steps_per_publish,
        group_s=total_s / plan.groups_per_publish,
        rollout_idle=1 - busy_s / (len(generations) * len(generations[0].engines) * total_s),
        running=running_s / busy_s,
        trainer_idle=1 - train_s / total_s,
        tokens_per_s=tokens / total_s,
        token_staleness={0: 1.0},
        trajectory_staleness={0: 1.0},
        peak_open=plan.groups_per_publish,
    )


def _generations(plan: Plan, lengths: Lengths, step_s: Line) -> list[Generation]:
    """Successive generations: as many as the plan measures versions."""
    size = plan.groups_per_publish
    return [Generation(plan, lengths, step_s, size * i) for i in range(plan.horizon.publishes)]
