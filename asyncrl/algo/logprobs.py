"""
Log-probabilities of the tokens that were sampled, without keeping log-probabilities of those that were not.

Shapes: N tokens, H hidden size, V vocabulary. At V = 150,000 one row of logits is 600 kB, so from hidden states the
vocabulary is visited a chunk of rows at a time, and a chunk's logits are computed again in the backward pass.

The distribution is softmax(logits / temperature) over the whole vocabulary. Engines that cut it (top-p, top-k) record
log-probs of the cut distribution, which are higher: with those switched on, the ratio to the policy in training is
below 1 from the start.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CHUNK_LOGITS = 1 << 25
"""Logits alive at a time, in numbers: 128 MiB as float32, still rows enough for an efficient product."""


def logprobs_of_logits(logits: Tensor, token_ids: Tensor, *, temperature: float) -> Tensor:
    """
    Log-probability of one token in each row.

    Args:
        logits: [N, V] any float dtype; computed on in float32.
        token_ids: [N] int64.
        temperature: Above zero; that of the sampler.

    Returns:
        [N] float32, nats.
    """
    scaled = logits.float() if temperature == 1 else logits.float() / temperature
    return -F.cross_entropy(scaled, token_ids, reduction="none")


def logprobs_of_hidden(
    hidden: Tensor,
    head: nn.Module,
    token_ids: Tensor,
    *,
    temperature: float,
    vocab_size: int,
    chunk: int = CHUNK_LOGITS,
) -> Tensor:
    """
    The same from the last hidden states, with at most ``chunk`` logits in memory.

    Args:
        hidden: [N, H] at the positions that *predict* the tokens. Carries the gradient.
        head: [N, H] to [N, V] logits.
        token_ids: [N] int64.
        temperature: Above zero; that of the sampler.
        vocab_size: V.
        chunk: Logits computed at a time; one row at least.

    Returns:
        [N] float32, nats.
    """

    def logprobs(rows: Tensor, ids: Tensor) -> Tensor:
        return logprobs_of_logits(head(rows), ids, temperature=temperature)

    num_rows = max(1, chunk // vocab_size)
    if len(hidden) <= num_rows:
        return logprobs(hidden, token_ids)
    pieces = zip(torch.split(hidden, num_rows), torch.split(token_ids, num_rows), strict=True)
    return torch.cat([checkpoint(logprobs, rows, ids, use_reentrant=False) for rows, ids in pieces])
