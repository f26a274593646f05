"""
Pack trajectories into micro-batches of at most a number of tokens.

    groups           aaaa bbbb cccc dddd
    micro-batches    └──────┘└──────┘└─┘      tokens of each <= budget; each reads a prompt once

Trajectories are laid end to end without padding, so only the sum of their tokens counts. Trajectories of a group are
neighbours, which lets them share their prompt. Pure functions from sizes to indices.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from asyncrl.errors import ConfigError


class Size(NamedTuple):
    """Tokens of one trajectory. Trajectories of a group have the same prompt."""

    group_id: int
    prompt: int
    completion: int
    """Tokens after the prompt: of the completion, or of an episode with those of its environment."""

    @property
    def total(self) -> int:
        """All tokens: the cost of a trajectory that shares its prompt with no other."""
        return self.prompt + self.completion


def num_tokens(sizes: Iterable[Size]) -> int:
    """Tokens the model reads for trajectories packed together: each group's prompt once, and every completion."""
    sizes = list(sizes)
    prompts = {size.group_id: size.prompt for size in sizes}
    return sum(prompts.values()) + sum(size.completion for size in sizes)


def by_group(sizes: Sequence[Size]) -> list[list[int]]:
    """Indices of each group's trajectories; groups and trajectories keep the order of ``sizes``."""
    groups: dict[int, list[int]] = {}
    for index, size in enumerate(sizes):
        groups.setdefault(size.group_id, []).append(index)
    return list(groups.values())


def micro_batches(sizes: Sequence[Size], max_tokens: int) -> list[list[int]]:
    """
    Put every index into one micro-batch of at most ``max_tokens``, counted by `num_tokens`, in the order of `by_group`.

    Raises:
        ConfigError: A single trajectory exceeds the budget.
    """
    batches: list[list[int]] = []
    groups: set[int] = set()
    room = 0
    for index in chain.from_iterable(by_group(sizes)):
        size = sizes[index]
        if size.total > max_tokens:
            raise ConfigError(
                f"trajectory {index} has {size.total} tokens, more than trainer.max_tokens_per_micro_batch x "
                f"trainer.sequence_parallel = {max_tokens}; raise the product to at least {size.total}"
            )
        cost = size.completion if size.group_id in groups else size.total
        if not batches or cost > room:
            batches.append([])
            groups, room, cost = set(), max_tokens, size.total
        batches[-1].append(index)
        groups.add(size.group_id)
        room -= cost
    return batches
