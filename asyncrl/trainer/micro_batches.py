"""
Which trajectories go through the model together.

    lengths, sorted      ▁▁▂▂▂▃▃▄▅▅▆▇█
    micro-batches        └────┘└──┘└─┘└┘      tokens of each <= budget

Trajectories lie end to end, so only their sum counts. They are sorted because attention takes neighbours of one length
together. Pure: numbers in, indices out; any number of trajectories will do.
"""

from collections.abc import Sequence

from asyncrl.errors import ConfigError


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """
    Every index exactly once, in micro-batches of at most ``max_tokens``.

    Args:
        lengths: Prompt and completion tokens of each trajectory.
        max_tokens: Bound of their sum.

    Returns:
        Indices into ``lengths``, shortest trajectories first, earlier ones first among equals.

    Raises:
        ConfigError: One trajectory alone is over the budget.
    """
    batches: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[index]
        if length > max_tokens:
            raise ConfigError(
                f"trajectory {index} has {length} tokens, more than trainer.max_tokens_per_micro_batch={max_tokens}; "
                f"raise it to at least {length}"
            )
        if not batches or length > room:
            batches.append([])
            room = max_tokens
        batches[-1].append(index)
        room -= length
    return batches
