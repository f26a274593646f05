"""Mask of sequences that the policy has moved away from and that would push it further."""

from torch import Tensor

from asyncrl.algo.ragged import Ragged


def divergent(log_ratio: Tensor, advantages: Tensor, sequences: Ragged, threshold: float) -> Tensor:
    """
    Mark the tokens to leave out of the loss: those of negative advantage in divergent sequences.

        divergent_i = mean_t (behavior_logprobs - logprobs) > threshold

    The mean estimates the KL of the sampler to the trainer, per token. A bad answer that has become unlikely teaches
    little, and the gradient that makes it less likely still is unbounded; a good one pulls the policy back, and stays.

    Args:
        log_ratio: [N] trainer to sampler, nats. Without gradient.
        advantages: [N].
        threshold: Largest mean of a sequence that is trained on, nats per token.

    Returns:
        [N] bool. With an advantage for each trajectory, whole sequences are marked or left.

    Source:
        DeepSeek-AI 2025, arXiv:2512.02556, sec. 3.1 (off-policy sequence masking).
    """
    return sequences.spread(sequences.mean(-log_ratio) > threshold) & (advantages < 0)
