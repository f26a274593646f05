"""
Which rank trains which trajectories, and in how many passes.

    num_tokens   ▇ ▆ ▅ ▃ ▂ ▂ ▁        longest first, each to whoever has least
    rank 0       ▇     ▃   ▂ ▁
    rank 1         ▆ ▅   ▂            any number of trajectories over any number of ranks

Pure, and a function of what every rank knows: all come to the same answer without asking. Sharded ranks work together
in every pass through the model, so whoever has fewer micro-batches makes empty ones.
"""

from collections.abc import Sequence

from asyncrl.trainer.micro_batches import micro_batches


def owners(num_tokens: Sequence[int], size: int) -> list[int]:
    """
    The rank of each trajectory, so that ranks have about as many tokens each.

    Greedy, longest first: no rank has more than 4/3 of the tokens that the best assignment would give it.

    Args:
        num_tokens: [S] prompt and completion.
        size: Ranks.

    Source:
        Graham 1969, "Bounds on multiprocessing timing anomalies", sec. 4 (the bound).
    """
    loads = [0] * size
    owner = [0] * len(num_tokens)
    for place in sorted(range(len(num_tokens)), key=lambda place: -num_tokens[place]):
        owner[place] = min(range(size), key=loads.__getitem__)
        loads[owner[place]] += num_tokens[place]
    return owner


def passes(
    places: Sequence[int], num_tokens: Sequence[int], owner: Sequence[int], *, rank: int, size: int, max_tokens: int
) -> list[list[int]]:
    """
    The micro-batches of one rank: equally many on each.

    Args:
        places: Of the trajectories to go through the model.
        num_tokens: [S] of all.
        owner: [S] rank of each.
        max_tokens: Of one micro-batch.

    Returns:
        Lists of places, the last ones empty where others have more.
    """
    own = [_of_rank(places, num_tokens, owner, other, max_tokens) for other in range(size)]
    longest = max(map(len, own))
    return own[rank] + [[] for _ in range(longest - len(own[rank]))]


def _of_rank(
    places: Sequence[int], num_tokens: Sequence[int], owner: Sequence[int], rank: int, max_tokens: int
) -> list[list[int]]:
    mine = [place for place in places if owner[place] == rank]
    batches = micro_batches([num_tokens[place] for place in mine], max_tokens)
    return [[mine[i] for i in batch] for batch in batches]
