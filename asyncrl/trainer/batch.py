"""
Trajectories as the trainer sees them, and as rectangles of tokens.

Shapes: B trajectories, W tokens of the longest one, N completion tokens of them all. Rows are padded on the right:
a causal model's states at real positions do not see what comes after, so no attention mask is needed, and the
fastest attention applies. What is computed on is gathered into [N] at once; beyond the model there is no padding.

    row      p p p c c c · ·        p prompt, c completion, · padding
    gathered     ▲ ▲ ▲              state at a position predicts the token after it
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.errors import AsyncrlError
from asyncrl.messages import Span


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSample:
    """One trajectory and its reward. Arrays are borrowed."""

    group_id: int
    prompt_ids: NDArray[np.int32]
    """[L], at least one."""
    completion_ids: NDArray[np.int32]
    """[T]."""
    behavior_logprobs: NDArray[np.float32]
    """[T] under the policy that sampled, nats."""
    reward: float
    spans: Sequence[Span] = ()
    """Who wrote which completion tokens, in order; empty if that is not known."""

    def __post_init__(self) -> None:
        if not len(self.prompt_ids) or len(self.completion_ids) != len(self.behavior_logprobs):
            raise AsyncrlError(
                f"trajectory of group {self.group_id} does not hold together: {len(self.prompt_ids)} prompt tokens "
                f"(expected at least 1), {len(self.completion_ids)} completion tokens, but "
                f"{len(self.behavior_logprobs)} behavior_logprobs (expected as many)"
            )

    @property
    def num_tokens(self) -> int:
        """Prompt and completion: what the model reads."""
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """What one forward and backward pass needs."""

    input_ids: Tensor
    """[B, W] int64."""
    positions: Tensor
    """[N] int64 into the B·W states: those that predict the completion tokens."""
    token_ids: Tensor
    """[N] int64, the completion tokens."""
    behavior_logprobs: Tensor
    """[N] float32."""
    advantages: Tensor
    """[N] float32."""
    weights: Tensor
    """[N] float32, each token's share in the loss of the step."""
    is_compared: Tensor | None
    """[N] bool, written by the very weights in training; None if no token was."""


def collate(
    samples: Sequence[TrainingSample],
    advantages: Sequence[float],
    weights: Sequence[float],
    is_compared: NDArray[np.bool_] | None = None,
    *,
    device: torch.device,
) -> MicroBatch:
    """
    Pad trajectories to one rectangle.

    Args:
        samples: B trajectories.
        advantages: [B].
        weights: [B], of each token of a trajectory.
        is_compared: [N], as in `MicroBatch`.
        device: Where the tensors go.
    """
    width = max(sample.num_tokens for sample in samples)
    input_ids = np.zeros((len(samples), width), np.int64)
    positions = []
    for row, sample in enumerate(samples):
        prompt = len(sample.prompt_ids)
        input_ids[row, :prompt] = sample.prompt_ids
        input_ids[row, prompt : sample.num_tokens] = sample.completion_ids
        positions.append(np.arange(prompt - 1, sample.num_tokens - 1) + row * width)
    lengths = [len(sample.completion_ids) for sample in samples]

    def tensor(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return MicroBatch(
        input_ids=tensor(input_ids),
        positions=tensor(np.concatenate(positions)),
        token_ids=tensor(np.concatenate([sample.completion_ids for sample in samples]).astype(np.int64)),
        behavior_logprobs=tensor(np.concatenate([sample.behavior_logprobs for sample in samples]).astype(np.float32)),
        advantages=tensor(np.repeat(np.asarray(advantages, np.float32), lengths)),
        weights=tensor(np.repeat(np.asarray(weights, np.float32), lengths)),
        is_compared=None if is_compared is None else tensor(is_compared),
    )
