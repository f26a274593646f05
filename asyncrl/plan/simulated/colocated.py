"""
The synchronous baseline: every device generates P T groups, then every device trains on them, and so on.

    | all replicas generate ........ the longest completion | all devices train T steps | other |

Nobody is ever stale, and everybody waits for the longest completion.
"""

import random

from asyncrl.messages import Unit
from asyncrl.plan.lengths import Lengths
from asyncrl.plan.numbers import Plan
from asyncrl.plan.outcome import SimulationResult
from asyncrl.plan.simulated.agenda import Agenda
from asyncrl.plan.simulated.decoding import Decoding, Finished, Job
from asyncrl.plan.speeds import Line, TrainingSpeed


class Generation:
    """P T groups spread over all replicas in turn, decoded to the end."""

    def __init__(self, plan: Plan, lengths: Lengths, step_s: Line, first_group: int) -> None:
        rollout, schedule = plan.rollout, plan.schedule
        self.agenda = Agenda()
        self.tokens = 0
        self._num_open = 0
        prefill_s = 1 / rollout.prefill_tokens_per_s
        self.decodings = [
            Decoding(self.agenda, rollout.slots, step_s, prefill_s, self._finished)
            for _ in range(plan.devices // rollout.devices_per_replica)
        ]
        for decoding in self.decodings:
            decoding.swap(0, 0.0, recompute=False)
        for group_id in range(first_group, first_group + plan.groups_per_publish):
            rng = random.Random(f"{plan.horizon.seed}/{group_id}")
            completions = lengths.group(rng, schedule.group_size)
            self.tokens += sum(completions)
            self._num_open += len(completions)
            self.decodings[group_id % len(self.decodings)].add(
                Job(Unit(group_id, index), 0, length, 0 if index else rollout.prompt_tokens)
                for index, length in enumerate(completions)
            )
        while self._num_open and self.agenda.advance():
            pass

    @property
    def seconds(self) -> float:
        """Until the longest completion was done."""
        return self.agenda.now_s

    def _finished(self, finished: Finished) -> None:
        self._num_open -= 1


def generate_s(plan: Plan, lengths: Lengths, step_s: Line) -> float:
    """Seconds all devices generate for one publish, on average over some."""
    generations = [Generation(plan, lengths, step_s, first) for first in _firsts(plan)]
    return sum(generation.seconds for generation in generations) / len(generations)


def colocated(plan: Plan, lengths: Lengths, step_s: Line, training: TrainingSpeed) -> SimulationResult:
    """The baseline of a plan, on as many devices."""
    generations = [Generation(plan, lengths, step_s, first) for first in _firsts(plan)]
    schedule, rollout = plan.schedule, plan.rollout
    completions = plan.groups_per_publish * schedule.group_size
    tokens = sum(generation.tokens for generation in generations) / len(generations)
    generate = sum(generation.seconds for generation in generations) / len(generations)
    train_s = training.seconds(tokens + completions * rollout.prompt_tokens, plan.devices)
    total_s = generate + train_s + plan.synchronous.other_s
    busy_s = sum(decoding.busy_s for g in generations for decoding in g.decodings)
    running_s = sum(decoding.running_s for g in generations for decoding in g.decodings)
    return SimulationResult(
        devices=plan.devices,
        rollout_devices=plan.devices,
        staleness=0.0,
        step_s=total_s / schedule.steps_per_publish,
        group_s=total_s / plan.groups_per_publish,
        rollout_idle=1 - busy_s / (len(generations) * len(generations[0].decodings) * total_s),
        running=running_s / busy_s,
        trainer_idle=1 - train_s / total_s,
        tokens_per_s=tokens / total_s,
        token_staleness={0: 1.0},
        trajectory_staleness={0: 1.0},
        peak_open=plan.groups_per_publish,
    )


def _firsts(plan: Plan) -> range:
    """First groups of the batches that are generated: as many as the plan measures versions, at most 4."""
    return range(0, plan.groups_per_publish * min(plan.horizon.publishes, 4), plan.groups_per_publish)
