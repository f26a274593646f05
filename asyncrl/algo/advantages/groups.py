"""
Computations per group of trajectories.

    outcomes of a step ─▶ by group ─▶ one number per trajectory ─▶ the same on each of its tokens
"""

from collections.abc import Callable, Sequence

import numpy as np

from asyncrl.algo.outcomes import Advantages, Floats, Outcome


def groups(outcomes: Sequence[Outcome]) -> dict[int, list[int]]:
    """Indices of the trajectories of each group; they need not be adjacent."""
    places: dict[int, list[int]] = {}
    for place, outcome in enumerate(outcomes):
        places.setdefault(outcome.group_id, []).append(place)
    return places


def per_group(outcomes: Sequence[Outcome], estimate: Callable[[list[Outcome]], Floats]) -> Floats:
    """[S] numbers in the order of the [S] outcomes; ``estimate`` maps the n outcomes of one group to [n] numbers."""
    numbers = np.zeros(len(outcomes))
    for places in groups(outcomes).values():
        numbers[places] = estimate([outcomes[place] for place in places])
    return numbers


def on_every_token(outcomes: Sequence[Outcome], numbers: Floats) -> Advantages:
    """Spread [S] numbers: [T] copies for each trajectory."""
    return [np.full(outcome.length, number) for outcome, number in zip(outcomes, numbers, strict=True)]
