"""
Trajectories of one training step: metadata of all, and tokens of those that this rank trains.

    Batch ─▶ TrajectoryInfo of all ─▶ assignment to ranks ─▶ fetch own tokens ─▶ Step
                   the same on every rank                      different on every rank

Rewards and lengths are enough for most advantage estimators, so every rank computes the advantages of the whole step
without the tokens of the others. The *place* of a trajectory is its index in `Step.infos`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from asyncrl.algo.outcomes import Outcome
from asyncrl.errors import AsyncrlError
from asyncrl.messages.trajectory import Span, Turn
from asyncrl.trainer.packing.assignment import TrajectorySize, by_group, first_sharing, rank_micro_batches
from asyncrl.trainer.packing.pictures import TrainingImage
from asyncrl.trainer.ranks.ranks import Ranks

# ── trajectory ────────────────────────────────────────────────────────────────────────────────
# Tokens of one trajectory as the trainer reads them, and its verdict.


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


# ── step ──────────────────────────────────────────────────────────────────────────────────────

UNASSIGNED = -1
"""Owner of a trajectory that no rank trains: its tokens are not fetched."""


@dataclass(frozen=True, slots=True, eq=False)
class TrajectoryInfo:
    """Metadata of one trajectory, without its tokens."""

    index: int
    """Index within its group."""
    prompt_length: int
    outcome: Outcome
    shares_prompt: bool = True
    """True if it may share the prompt of its group in a row; False if its prompt has experts of its own."""
    context_length: int = 0
    """Tokens that are read after the prompt and not trained."""

    @property
    def size(self) -> TrajectorySize:
        """
        Most tokens that the model reads; a prompt that may not be shared counts as a part of those after it.

        Branches of an episode that repeat each other are fewer tokens.
        """
        after = self.context_length + self.outcome.length
        if not self.shares_prompt:
            return TrajectorySize(self.outcome.group_id, 0, self.prompt_length + after)
        return TrajectorySize(self.outcome.group_id, self.prompt_length, after)

    def with_trained(self, length: int) -> "TrajectoryInfo":
        """The trajectory with only ``length`` of its tokens trained, and the others read."""
        outcome = replace(self.outcome, length=length)
        return replace(self, outcome=outcome, context_length=self.context_length + self.outcome.length - length)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingStep:
    """One training step: S trajectories in whole groups, those of a group adjacent. None if every group is left out."""

    infos: Sequence[TrajectoryInfo]
    """[S], in the broker's order."""
    trajectories: Mapping[int, TrainingTrajectory]
    """Trajectories of this rank, by place."""
    owners: Sequence[int]
    """[S] rank that trains each, the first one of those that share its row, or `UNASSIGNED`."""

    def __post_init__(self) -> None:
        runs = [group_id for group_id, _ in groupby(self.infos, key=lambda info: info.outcome.group_id)]
        if len(set(runs)) != len(runs):
            raise AsyncrlError(
                f"train: expected whole groups, trajectories of a group adjacent; got {len(self.infos)} trajectories "
                f"of {len(set(runs))} groups in {len(runs)} runs"
            )

    @property
    def outcomes(self) -> list[Outcome]:
        return [info.outcome for info in self.infos]

    def mini_batches(self, number: int) -> list[list[int]]:
        """Places of ``number`` parts of whole groups, as equal as possible; fewer parts if there are fewer groups."""
        groups = by_group([info.size for info in self.infos])
        number = min(number, len(groups))
        bounds = [len(groups) * part // number for part in range(number + 1)]
        return [[place for group in groups[start:end] for place in group] for start, end in pairwise(bounds)]

    def without(self, group_ids: Collection[int]) -> "TrainingStep":
        """The step without these groups. The others keep their order and their ranks."""
        if not group_ids:
            return self
        kept = [place for place, info in enumerate(self.infos) if info.outcome.group_id not in group_ids]
        return TrainingStep(
            [self.infos[place] for place in kept],
            {new: self.trajectories[old] for new, old in enumerate(kept) if old in self.trajectories},
            [self.owners[place] for place in kept],
        )

    def select(self, places: Sequence[int]) -> list[TrainingTrajectory]:
        """Trajectories at ``places``; all of them must be of this rank."""
        return [self.trajectories[place] for place in places]

    def micro_batches(self, places: Sequence[int], ranks: Ranks, max_tokens: int) -> list[list[int]]:
        """
        Micro-batches of this rank's part of ``places``; every rank gets the same number of them.

        ``max_tokens`` are those of a rank: ranks that share a row have as many each.
        """
        sizes = [info.size for info in self.infos]
        return rank_micro_batches(
            places,
            sizes,
            self.owners,
            rank=first_sharing(ranks.rank, ranks.sequence.size),
            num_ranks=ranks.size,
            max_tokens=max_tokens * ranks.sequence.size,
        )


def local_step(trajectories: Iterable[TrainingTrajectory]) -> TrainingStep:
    """Step of which this process, rank 0, trains every trajectory."""
    trajectories = list(trajectories)
    if not trajectories:
        raise AsyncrlError("train: expected whole groups, got 0 trajectories")
    infos = [trajectory_info(trajectory) for trajectory in trajectories]
    return TrainingStep(infos, dict(enumerate(trajectories)), [0] * len(trajectories))


def trajectory_info(trajectory: TrainingTrajectory) -> TrajectoryInfo:
    """Metadata of a trajectory whose tokens are known."""
    outcome = Outcome(
        group_id=trajectory.group_id,
        length=len(trajectory.completion_ids),
        reward=trajectory.reward,
        metrics=trajectory.metrics,
    )
    return TrajectoryInfo(
        index=trajectory.index,
        prompt_length=len(trajectory.prompt_ids),
        outcome=outcome,
        shares_prompt=trajectory.experts is None,
        context_length=len(trajectory.context_ids),
    )
