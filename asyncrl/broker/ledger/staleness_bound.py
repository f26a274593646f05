"""
Bound on the staleness of a trained trajectory that a schedule promises, in policy versions.

    P groups per step, T steps per publish, W groups in the window

    ``order = "fifo"``                          ceil(W / (P T)) - 1, which is S if S is whole
    ``max_staleness = L``, wait or reissue      L
    ``max_staleness = L``, train or mask        no further bound: older trajectories are trained on and counted
    ``order = "completion"`` alone              none

Of two bounds the smaller holds. Partial rollout changes neither: a trajectory's oldest token is as new as the version
that was live when its group was admitted or restarted.

Proof for ``fifo``: the g-th group trained on, g = q P T + r, trains version q. When it was admitted, at most W - 1 of
the groups before it were open, so the step that trained the one W places before it had made a live version, number
``(g - W) // (P T) + 1`` or a later one. So the staleness is at most ``q - (g - W) // (P T) - 1``, largest for r = 0.
"""

from asyncrl.config.sections import Schedule


def most_versions(schedule: Schedule) -> int | None:
    """Largest staleness at which a trajectory may be trained on; None if the schedule promises no bound."""
    bounds = []
    if schedule.order == "fifo":
        bounds.append(-(-schedule.window // (schedule.groups_per_step * schedule.steps_per_publish)) - 1)
    if schedule.kept_max_staleness is not None:
        bounds.append(schedule.kept_max_staleness)
    return min(bounds, default=None)
