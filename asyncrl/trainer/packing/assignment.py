"""
Assign trajectories to ranks, and cut each rank's trajectories into micro-batches.

    tokens       ▇ ▆ ▅ ▃ ▂ ▂ ▁        longest first, each to the rank with the fewest tokens
    rank 0       ▇     ▃   ▂ ▁
    rank 1         ▆ ▅   ▂            any number of trajectories over any number of ranks

Either whole groups are assigned, which read their prompt once, or single trajectories, which balance better: whichever
gives the most loaded rank fewer tokens. Ranks that share their rows (`SequenceGroup`) count as one, named by the first.
All ranks compute the same assignment, from data that all of them have.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from asyncrl.errors import ConfigError

# ── micro batches ─────────────────────────────────────────────────────────────────────────────
# Pack trajectories into micro-batches of at most a number of tokens.
#
#     groups           aaaa bbbb cccc dddd
#     micro-batches    └──────┘└──────┘└─┘      tokens of each <= budget; each reads a prompt once
#
# Trajectories are laid end to end without padding, so only the sum of their tokens counts. Trajectories of a group
# are neighbours, which lets them share their prompt. Pure functions from sizes to indices.


class TrajectorySize(NamedTuple):
    """Tokens of one trajectory. Trajectories of a group have the same prompt."""

    group_id: int
    prompt: int
    completion: int
    """Tokens after the prompt: of the completion, or of an episode with those of its environment."""

    @property
    def total(self) -> int:
        """All tokens: the cost of a trajectory that shares its prompt with no other."""
        return self.prompt + self.completion


def num_tokens(sizes: Iterable[TrajectorySize]) -> int:
    """Tokens the model reads for trajectories packed together: each group's prompt once, and every completion."""
    sizes = list(sizes)
    prompts = {size.group_id: size.prompt for size in sizes}
    return sum(prompts.values()) + sum(size.completion for size in sizes)


def by_group(sizes: Sequence[TrajectorySize]) -> list[list[int]]:
    """Indices of each group's trajectories; groups and trajectories keep the order of ``sizes``."""
    groups: dict[int, list[int]] = {}
    for index, size in enumerate(sizes):
        groups.setdefault(size.group_id, []).append(index)
    return list(groups.values())


def micro_batches(sizes: Sequence[TrajectorySize], max_tokens: int) -> list[list[int]]:
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


# ── assignment ────────────────────────────────────────────────────────────────────────────────


def assign_ranks(sizes: Sequence[TrajectorySize], num_ranks: int, sequence_parallel: int = 1) -> list[int]:
    """
    [S] rank of each trajectory, chosen so that ranks get about the same number of tokens.

    Of each ``sequence_parallel`` adjacent ranks, which train the same trajectories, it is the first.

    Greedy, longest first. If no prompts are shared, no rank gets more than 4/3 of the tokens that the most loaded rank
    has in the best assignment (Graham 1969, "Bounds on multiprocessing timing anomalies", sec. 4).
    """
    num_ranks //= sequence_parallel
    by_groups = _assign_greedily(by_group(sizes), sizes, num_ranks)
    by_trajectories = _assign_greedily([[place] for place in range(len(sizes))], sizes, num_ranks)
    owners = min(by_groups, by_trajectories, key=lambda owners: _max_load(owners, sizes, num_ranks))
    return [owner * sequence_parallel for owner in owners]


def first_sharing(rank: int, sequence_parallel: int) -> int:
    """First of the adjacent ranks that share their rows with ``rank``."""
    return rank - rank % sequence_parallel


def _assign_greedily(parts: Sequence[Sequence[int]], sizes: Sequence[TrajectorySize], num_ranks: int) -> list[int]:
    costs = [num_tokens(sizes[place] for place in part) for part in parts]
    loads, owners = [0] * num_ranks, [0] * len(sizes)
    for number in sorted(range(len(parts)), key=lambda number: -costs[number]):
        rank = min(range(num_ranks), key=loads.__getitem__)
        loads[rank] += costs[number]
        for place in parts[number]:
            owners[place] = rank
    return owners


def _max_load(owners: Sequence[int], sizes: Sequence[TrajectorySize], num_ranks: int) -> int:
    parts: list[list[TrajectorySize]] = [[] for _ in range(num_ranks)]
    for rank, size in zip(owners, sizes, strict=True):
        parts[rank].append(size)
    return max(map(num_tokens, parts))


def rank_micro_batches(
    places: Sequence[int],
    sizes: Sequence[TrajectorySize],
    owners: Sequence[int],
    *,
    rank: int,
    num_ranks: int,
    max_tokens: int,
) -> list[list[int]]:
    """
    Micro-batches of one rank: those of ``places``, over all S trajectories of a step, that the rank owns.

    Every forward and backward pass of a sharded model is collective, so all ranks get the same number of micro-batches:
    a rank with fewer is filled up with empty ones.
    """
    batches = []
    for other in range(num_ranks):
        own = [place for place in places if owners[place] == other]
        cut = micro_batches([sizes[place] for place in own], max_tokens)
        batches.append([[own[i] for i in batch] for batch in cut])
    longest = max(map(len, batches))
    return batches[rank] + [[] for _ in range(longest - len(batches[rank]))]
