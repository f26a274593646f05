"""Tokens of one trajectory as the trainer reads them, and its verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import AsyncrlError
from asyncrl.messages.trajectory import Span, Turn
from asyncrl.trainer.packing.pictures import TrainingImage


def no_ids() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingTrajectory:
    """
    One trajectory of L >= 1 prompt tokens and T completion tokens, with C tokens of context in an episode.

    Arrays are borrowed.
    """

    group_id: int
    prompt_ids: NDArray[np.int32]
    completion_ids: NDArray[np.int32]
    behavior_logprobs: NDArray[np.float32]
    """[T] under the policy that sampled, nats."""
    reward: float
    spans: Sequence[Span] = ()
    """Policy version of each run of completion tokens, in order; empty if unknown."""
    index: int = 0
    """Index within its group."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of the verdict."""
    images: Sequence[TrainingImage] = ()
    """Pictures, in the order of their tokens in ``prompt_ids``."""
    mask_counts: NDArray[np.int32] = field(default_factory=no_ids)
    """Number of ids in the sampling mask of each token, [T]; empty leaves the whole vocabulary."""
    mask_ids: NDArray[np.int32] = field(default_factory=no_ids)
    """Ids of all masks, mask after mask."""
    experts: NDArray[np.integer] | None = None
    """Experts of every token but the last, [L + C + T - 1, layers, K]; None lets the routers choose."""
    turns: Sequence[Turn] = ()
    """Turns of an episode, in the order written; empty for one completion after the prompt."""
    context_ids: NDArray[np.int32] = field(default_factory=no_ids)
    """[C] tokens between those of the policy, turn after turn, which are read and not trained on."""

    def __post_init__(self) -> None:
        if not len(self.prompt_ids) or len(self.completion_ids) != len(self.behavior_logprobs):
            raise AsyncrlError(
                f"trajectory of group {self.group_id} is inconsistent: {len(self.prompt_ids)} prompt tokens (expected "
                f"at least 1), {len(self.completion_ids)} completion tokens, but {len(self.behavior_logprobs)} "
                f"behavior_logprobs (expected as many)"
            )
        self._check_turns()
        self._check_replayed(len(self.completion_ids))

    def _check_turns(self) -> None:
        context, written = (sum(turn.num_context for turn in self.turns), sum(turn.num_written for turn in self.turns))
        found = len(self.context_ids), len(self.completion_ids) if self.turns else 0
        if (context, written) != found:
            raise AsyncrlError(
                f"trajectory of group {self.group_id} has turns of {context} tokens of context and {written} written, "
                f"but {found[0]} and {found[1]} tokens (expected as many)"
            )

    def _check_replayed(self, length: int) -> None:
        if len(self.mask_counts) not in (0, length) or self.mask_counts.sum() != len(self.mask_ids):
            raise AsyncrlError(
                f"trajectory of group {self.group_id} has {len(self.mask_counts)} sampling masks of "
                f"{self.mask_counts.sum()} ids for {length} completion tokens, but {len(self.mask_ids)} mask_ids "
                f"(expected none, or a mask for each token)"
            )
        if self.experts is not None and len(self.experts) != (
            num_read := len(self.prompt_ids) + len(self.context_ids) + length - 1
        ):
            raise AsyncrlError(
                f"trajectory of group {self.group_id} has experts of {len(self.experts)} tokens, expected those of all "
                f"{num_read} but the last"
            )
