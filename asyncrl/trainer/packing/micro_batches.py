"""
Which trajectories go through the model together.

    groups           aaaa bbbb cccc dddd
    micro-batches    └──────┘└──────┘└─┘      tokens of each <= budget; a prompt is read once in each that needs it

Trajectories lie end to end, so only their sum counts; those of a group are neighbours, to share its prompt. Pure:
numbers in, indices out; any number of trajectories will do.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from asyncrl.errors import ConfigError


class Size(NamedTuple):
    """Of a trajectory, in tokens."""

    group_id: int
    """Trajectories of a group have one prompt."""
    prompt: int
    completion: int

    @property
    def alone(self) -> int:
        """Tokens to read if no other has its prompt."""
        return self.prompt + self.completion


def num_tokens(sizes: Iterable[Size]) -> int:
    """To read for trajectories that go through the model together: each prompt once."""
    sizes = list(sizes)
    prompts = {size.group_id: size.prompt for size in sizes}
    return sum(prompts.values()) + sum(size.completion for size in sizes)


def by_group(sizes: Sequence[Size]) -> list[list[int]]:
    """Indices of each group's trajectories, in the order in which groups and trajectories come."""
    groups: dict[int, list[int]] = {}
    for index, size in enumerate(sizes):
        groups.setdefault(size.group_id, []).append(index)
    return list(groups.values())


def micro_batches(sizes: Sequence[Size], max_tokens: int) -> list[list[int]]:
    """
    Every index exactly once, in micro-batches of at most ``max_tokens``.

    Args:
        sizes: Of each trajectory.
        max_tokens: Bound of `num_tokens`.

    Returns:
        Indices into ``sizes``, in the order of `by_group`.

    Raises:
        ConfigError: One trajectory alone is over the budget.
    """
    batches: list[list[int]] = []
    groups: set[int] = set()
    room = 0
    for index in chain.from_iterable(by_group(sizes)):
        size = sizes[index]
        if size.alone > max_tokens:
            raise ConfigError(
                f"trajectory {index} has {size.alone} tokens, more than trainer.max_tokens_per_micro_batch="
                f"{max_tokens}; raise it to at least {size.alone}"
            )
        cost = size.completion if size.group_id in groups else size.alone
        if not batches or cost > room:
            batches.append([])
            groups, room, cost = set(), max_tokens, size.alone
        batches[-1].append(index)
        groups.add(size.group_id)
        room -= cost
    return batches
