"""
Trajectories and their siblings.

    outcomes of a step ─▶ by group ─▶ one number for each trajectory ─▶ on each of its tokens
"""

from collections.abc import Callable, Sequence

import numpy as np

from asyncrl.algo.outcomes import Advantages, Floats, Outcome


def groups(outcomes: Sequence[Outcome]) -> dict[int, list[int]]:
    """Places of the trajectories of each group; they need not be adjacent."""
    places: dict[int, list[int]] = {}
    for place, outcome in enumerate(outcomes):
        places.setdefault(outcome.group_id, []).append(place)
    return places


def per_group(outcomes: Sequence[Outcome], estimate: Callable[[list[Outcome]], Floats]) -> Floats:
    """
    One number for each trajectory, from what a group is worth by itself.

    Args:
        outcomes: [S].
        estimate: [n] numbers of the n trajectories of one group.

    Returns:
        [S], in the order of the outcomes.
    """
    numbers = np.zeros(len(outcomes))
    for places in groups(outcomes).values():
        numbers[places] = estimate([outcomes[place] for place in places])
    return numbers


def on_every_token(outcomes: Sequence[Outcome], numbers: Floats) -> Advantages:
    """[T] of each trajectory, all the same, of [S] numbers."""
    return [np.full(outcome.length, number) for outcome, number in zip(outcomes, numbers, strict=True)]
