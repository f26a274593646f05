"""
Which rank trains which trajectories, and in how many passes.

    tokens       ▇ ▆ ▅ ▃ ▂ ▂ ▁        longest first, each to whoever has least
    rank 0       ▇     ▃   ▂ ▁
    rank 1         ▆ ▅   ▂            any number of trajectories over any number of ranks

What is handed out are whole groups, which read their prompt once, or single trajectories, which are easier to balance:
whichever leaves less to the rank that has most.

Pure, and a function of what every rank knows: all come to the same answer without asking. Sharded ranks work together
in every pass through the model, so whoever has fewer micro-batches makes empty ones.
"""

from collections.abc import Sequence

from asyncrl.trainer.packing.micro_batches import Size, by_group, micro_batches, num_tokens


def owners(sizes: Sequence[Size], ranks: int) -> list[int]:
    """
    The rank of each trajectory, so that ranks have about as many tokens each.

    Greedy, longest first: no rank has more than 4/3 of the tokens that the best assignment would give it if nobody
    shared a prompt.

    Args:
        sizes: [S] of each.
        ranks: How many.

    Source:
        Graham 1969, "Bounds on multiprocessing timing anomalies", sec. 4 (the bound).
    """
    together = _dealt(by_group(sizes), sizes, ranks)
    apart = _dealt([[place] for place in range(len(sizes))], sizes, ranks)
    return min(together, apart, key=lambda owner: _most(owner, sizes, ranks))


def _dealt(parts: Sequence[Sequence[int]], sizes: Sequence[Size], ranks: int) -> list[int]:
    costs = [num_tokens(sizes[place] for place in part) for part in parts]
    loads, owner = [0] * ranks, [0] * len(sizes)
    for number in sorted(range(len(parts)), key=lambda number: -costs[number]):
        rank = min(range(ranks), key=loads.__getitem__)
        loads[rank] += costs[number]
        for place in parts[number]:
            owner[place] = rank
    return owner


def _most(owner: Sequence[int], sizes: Sequence[Size], ranks: int) -> int:
    """Tokens of the rank that has most."""
    shares: list[list[Size]] = [[] for _ in range(ranks)]
    for rank, size in zip(owner, sizes, strict=True):
        shares[rank].append(size)
    return max(map(num_tokens, shares))


def passes(
    places: Sequence[int], sizes: Sequence[Size], owner: Sequence[int], *, rank: int, ranks: int, max_tokens: int
) -> list[list[int]]:
    """
    The micro-batches of one rank: equally many on each.

    Args:
        places: Of the trajectories to go through the model.
        sizes: [S] of all.
        owner: [S] rank of each.
        max_tokens: Of one micro-batch.

    Returns:
        Lists of places, the last ones empty where others have more.
    """
    own = [_of_rank(places, sizes, owner, other, max_tokens) for other in range(ranks)]
    longest = max(map(len, own))
    return own[rank] + [[] for _ in range(longest - len(own[rank]))]


def _of_rank(
    places: Sequence[int], sizes: Sequence[Size], owner: Sequence[int], rank: int, max_tokens: int
) -> list[list[int]]:
    mine = [place for place in places if owner[place] == rank]
    batches = micro_batches([sizes[place] for place in mine], max_tokens)
    return [[mine[i] for i in batch] for batch in batches]
