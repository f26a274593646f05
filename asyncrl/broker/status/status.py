"""
State of a run by the scheduler's books, for people. Reads the books and changes nothing.

    Scheduler ─▶ groups by state, nodes and what each waits for ─▶ Status
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from asyncrl.broker.groups.group import Group, State
from asyncrl.broker.scheduler import Scheduler
from asyncrl.broker.status.node_states import node_status
from asyncrl.messages.supervisor import Incident, Status

GROUP_STATES = ("unleased", "sampling", "grading", "complete", "in batch")

PAUSED = "paused by {by}: rollouts get no new leases, what is in hand goes on; asyncrl resume-sampling ends it"


def run_status(
    scheduler: Scheduler,
    now_s: float,
    *,
    run: str,
    time_s: float = 0.0,
    incidents: Sequence[Incident] = (),
    restarts: Sequence[str] = (),
    metrics: Mapping[str, float] | None = None,
) -> Status:
    """
    State of the run.

    Args:
        now_s: The scheduler's time.
        time_s: Duration of the run so far.
        restarts: Sentences about nodes that are started again.
        metrics: Metrics of the last step.
    """
    groups = group_states(scheduler)
    graded = scheduler.grading.num_assigned()
    measured = scheduler.evaluation.measurements
    return Status(
        run=run,
        state="ending" if scheduler.is_over else "paused" if scheduler.pause.is_set else "running",
        step=scheduler.training.batches.next_step,
        steps=scheduler.config.run.steps,
        policy_version=scheduler.transfers.live_version,
        window=scheduler.window.size,
        open_groups=scheduler.window.num_open,
        group_size=scheduler.config.schedule.group_size,
        groups=groups,
        nodes=[node_status(scheduler, node, groups, graded[node.peer], now_s) for node in scheduler.nodes.all()],
        time_s=round(time_s, 3),
        incidents=list(incidents),
        metrics=dict(metrics or {}),
        accuracy=measured[-1].accuracy if measured else None,
        notes=[*restarts, *_notes(scheduler)],
        base_accuracy=scheduler.evaluation.base_accuracy,
        accuracy_failed=measured[-1].num_failed if measured else 0,
    )


def _notes(scheduler: Scheduler) -> list[str]:
    notes = [PAUSED.format(by=scheduler.pause.by)] if scheduler.pause.is_set else []
    if values := scheduler.settings.values:
        notes.append(f"set live: {', '.join(f'{key} = {value}' for key, value in values.items())}")
    return notes


def group_states(scheduler: Scheduler) -> dict[str, int]:
    """Open training groups by state; a group is as far as the least advanced of its trajectories that move."""
    counts = Counter(map(_state_of, scheduler.training.batches))
    counts["in batch"] = scheduler.window.num_open - counts.total()
    return {state: counts[state] for state in GROUP_STATES}


def _state_of(group: Group) -> str:
    if group.is_complete:
        return "complete"
    states = {slot.state for slot in group.slots}
    if State.LEASED in states:
        return "sampling"
    return "unleased" if State.MISSING in states else "grading"
