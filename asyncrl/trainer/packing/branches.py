"""
Branches of a trajectory: what the policy read on each, and where it wrote.

    turns           prompt ── 0 ─┬─ 1           branch to 1   prompt, 0, 1      new: 0 and 1
                                 └─ 2           branch to 2   prompt, 0, 2      new: 2
                    nothing ── 3                branch to 3   3                 new: 3

A trajectory without turns is one branch, of its prompt and its completion.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncrl.checks.turns import path_to
from asyncrl.messages.trajectory import FROM_PROMPT, Turn
from asyncrl.trainer.packing.trajectory import TrainingTrajectory

Scalar = TypeVar("Scalar", bound=np.generic)


class Branch(NamedTuple):
    """One path through the turns of a trajectory, up to the last token that was read to write one."""

    root: int
    """`FROM_PROMPT` or `FROM_NOTHING`."""
    read: NDArray[np.int32]
    """Tokens that the policy read, the prompt included."""
    starts: Mapping[int, int]
    """Turns that no branch before has: number of tokens read before the first that each wrote."""


def turns_of(trajectory: TrainingTrajectory) -> Sequence[Turn]:
    """The turns; one after the prompt for a trajectory without any."""
    return trajectory.turns or (Turn(FROM_PROMPT, 0, len(trajectory.completion_ids)),)


def branches(trajectory: TrainingTrajectory) -> Iterator[Branch]:
    """Branches with tokens to predict, in the order of the turns that end them. Each token is new in one of them."""
    turns = turns_of(trajectory)
    context = cut(trajectory.context_ids, [turn.num_context for turn in turns])
    written = cut(trajectory.completion_ids, [turn.num_written for turn in turns])
    followed, seen = {turn.parent for turn in turns}, set[int]()
    for last in sorted(set(range(len(turns))) - followed):
        path = path_to(turns, last)
        root = turns[path[0]].parent
        parts = [trajectory.prompt_ids] if root == FROM_PROMPT else []
        starts, length = {}, sum(map(len, parts))
        num_read = 0
        for place in path:
            parts += [context[place], written[place]]
            length += len(context[place])
            if place not in seen and len(written[place]):
                starts[place] = length
                num_read = length + len(written[place]) - 1  # Nobody reads the last token.
            length += len(written[place])
        seen.update(path)
        if starts:
            yield Branch(root, np.concatenate(parts)[:num_read], starts)


def cut(values: NDArray[Scalar], lengths: Sequence[int]) -> list[NDArray[Scalar]]:
    """Consecutive parts of these lengths, one or more."""
    return np.split(values, list(accumulate(lengths))[:-1])
