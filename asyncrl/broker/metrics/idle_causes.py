"""
Causes of idle time in words, from the state of the groups.

    trainer   the groups that its next step lacks: sampling, grading, evaluation, rollouts, ...
    rollout   room in the window, which a step and its weights make; or what the trainer itself waits for
    reward    sampling

Read-only: no rule follows from it.
"""

from collections import Counter
from itertools import islice

from asyncrl.broker.groups.group import Group, State
from asyncrl.broker.scheduler import Scheduler
from asyncrl.messages.words import Role

LAST = 1 / 8
"""Share of a step's trajectories that count as its last ones: too few to keep the rollouts busy."""


def idle_causes(scheduler: Scheduler) -> dict[Role, str]:
    """Cause by role, such as ``waiting for grading``."""
    trainer = _trainer_waits_for(scheduler)
    return {
        "trainer": f"waiting for {trainer}",
        "rollout": f"waiting for {_rollouts_wait_for(scheduler, trainer)}",
        "reward": "waiting for sampling",
    }


def _trainer_waits_for(scheduler: Scheduler) -> str:
    training, config = scheduler.training, scheduler.config
    if scheduler.transfers.live_version < 0:
        return "weights to arrive"
    if training.batches.next_step >= config.run.steps:
        return "the end of the run"
    if training.awaited_step is None:
        return "the ledger"  # The batch is formed, and is sent once its record is on disk.
    lacking = _lacking(scheduler)
    if not lacking:  # The window is full of groups whose weights are not live, or no prompt is left.
        return "prompts" if scheduler.transfers.is_at_rest else "weights to arrive"
    states = Counter(slot.state for group in lacking for slot in group.slots)
    unsampled = states[State.LEASED] + states[State.MISSING]
    if not unsampled:
        return "grading" if states[State.STORED] else "spools"
    if not scheduler.nodes.rollouts():
        return "rollouts"
    if scheduler.pause.is_set and not states[State.LEASED]:
        return "an operator"
    if states[State.MISSING] > unsampled / 2:
        return "evaluation" if scheduler.evaluation.ongoing else "free slots"
    return "the last completions" if unsampled <= LAST * config.trajectories_per_step else "sampling"


def _lacking(scheduler: Scheduler) -> list[Group]:
    """Groups that the next step waits for; the likeliest if it takes whichever completes first."""
    batches, schedule = scheduler.training.batches, scheduler.config.schedule
    num_wanted, reach = schedule.groups_per_step, schedule.reach
    line = list(batches if reach is None else islice(batches, reach + num_wanted - 1))
    incomplete = [group for group in line if not group.is_complete]
    if reach is None:
        incomplete.sort(key=lambda group: group.size - group.num_scored)
    num_lacking = max(num_wanted - (len(line) - len(incomplete)), 1)
    return incomplete[:num_lacking]


def _rollouts_wait_for(scheduler: Scheduler, trainer: str) -> str:
    """``trainer`` is what the trainer waits for."""
    transfers = scheduler.transfers
    if transfers.live_version < 0:
        return "weights to arrive"
    if scheduler.pause.is_set:
        return "an operator"
    if scheduler.dispatcher.unleased.first() is not None:
        return "newer weights"  # A group is leased only to nodes at the version that was live when it was admitted.
    if not scheduler.training.admission.num_needed:
        return "the end of the run"
    if scheduler.training.awaited_step is not None:
        return trainer
    if not transfers.is_at_rest:
        return "weights to arrive"
    return "the trainer"
