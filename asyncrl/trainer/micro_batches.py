"""
Which trajectories go through the model together.

    lengths, sorted      ▁▁▂▂▂▃▃▄▅▅▆▇█
    micro-batches        └───┘└──┘└─┘└┘      right-padded rectangles: width x rows <= budget

A rectangle costs its area, whatever part of it is padding; neighbours in length pad each other least. A rectangle is
also closed before more than a tenth of it is padding, which is worth more than fewer, fuller ones: on a long-tailed
batch it halves the step. Pure: numbers in, indices out.
"""

from collections.abc import Sequence

from asyncrl.errors import ConfigError

MAX_PADDING = 0.1
"""Share of a micro-batch that may be padding. Lower gains nothing more: many narrow micro-batches cost calls."""


def micro_batches(lengths: Sequence[int], max_tokens: int, *, max_padding: float = MAX_PADDING) -> list[list[int]]:
    """
    Every index exactly once, in micro-batches of at most ``max_tokens``, padding included.

    Args:
        lengths: Prompt and completion tokens of each trajectory.
        max_tokens: Bound of rows times longest row.
        max_padding: Bound of the share of padding.

    Returns:
        Indices into ``lengths``, shortest trajectories first; the last index of a micro-batch is its longest.

    Raises:
        ConfigError: One trajectory alone is over the budget.
    """
    batches: list[list[int]] = []
    tokens = 0
    """Of the last micro-batch, without padding."""
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[index]
        if length > max_tokens:
            raise ConfigError(
                f"trajectory {index} has {length} tokens, more than trainer.max_tokens_per_micro_batch={max_tokens}; "
                f"raise it to at least {length}"
            )
        area = length * (len(batches[-1]) + 1) if batches else 0
        if batches and area <= max_tokens and area - (tokens + length) <= max_padding * area:
            batches[-1].append(index)
            tokens += length
        else:
            batches.append([index])
            tokens = length
    return batches
