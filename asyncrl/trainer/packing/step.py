"""
Trajectories of one training step: metadata of all, and tokens of those that this rank trains, cut into micro-batches.

    Batch ─▶ TrajectoryInfo of all ─▶ assignment to ranks ─▶ fetch own tokens ─▶ Step
                   the same on every rank                      different on every rank

Rewards and lengths are enough for most advantage estimators, so every rank computes the advantages of the whole step
without the tokens of the others. The *place* of a trajectory is its index in `Step.infos`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncrl.algo.outcomes import Outcome
from asyncrl.errors import AsyncrlError, ConfigError
from asyncrl.messages.trajectory import Span, Turn
from asyncrl.trainer.packing.pictures import TrainingImage
from asyncrl.trainer.ranks.ranks import Ranks

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
# Assign trajectories to ranks.
#
#     tokens       ▇ ▆ ▅ ▃ ▂ ▂ ▁        longest first, each to the rank with the fewest tokens
#     rank 0       ▇     ▃   ▂ ▁
#     rank 1         ▆ ▅   ▂            any number of trajectories over any number of ranks
#
# Either whole groups are assigned, which read their prompt once, or single trajectories, which balance better:
# whichever gives the most loaded rank fewer tokens. Ranks that share their rows (`SequenceGroup`) count as one, named
# by the first. All ranks compute the same assignment, from data that all of them have.


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

    def max_load(owners: Sequence[int]) -> int:
        loads: list[list[TrajectorySize]] = [[] for _ in range(num_ranks)]
        for rank, size in zip(owners, sizes, strict=True):
            loads[rank].append(size)
        return max(map(num_tokens, loads))

    owners = min(by_groups, by_trajectories, key=max_load)
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
    """Pictures in the order of their tokens, as `Trajectory.images`."""
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
    seat: int = 0
    """Seat whose turns these are, once the episode is split by seats."""

    @property
    def num_prompt_images(self) -> int:
        """Pictures among ``images`` that are the prompt's."""
        return len(self.images) - sum(turn.num_images for turn in self.turns)

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


# ── per token ─────────────────────────────────────────────────────────────────────────────────
# Numbers for every token of a step, shared between ranks: each rank computes those of its own trajectories.
#
#     rank 0   log-probs of 0, 3, 4 ─┐
#                                    ├─ all-gather ─▶ [S] arrays of [T] on every rank, in the order of the step
#     rank 1   log-probs of 1, 2    ─┘
#
# With 4 bytes per token and name, every rank can compute the same step-wide quantities (whitening, baselines by
# position, means of weights), independent of how the step is cut.

PerToken = list[NDArray[np.float64]]
"""[T] of each trajectory of a step."""


def all_gather_per_token(
    own: Mapping[str, Mapping[int, NDArray[np.float32]]],
    *,
    lengths: Sequence[int],
    owners: Sequence[int],
    ranks: Ranks,
) -> dict[str, PerToken]:
    """
    Combine the numbers of all ranks. Collective.

    Args:
        own: [T] by name and place, for every trajectory of this rank. All ranks have the same names.
        lengths: [S] T of each trajectory.
    """
    places = [[place for place, owner in enumerate(owners) if owner == rank] for rank in range(ranks.size)]
    names = sorted(own)
    sent = b"".join(own[name][place].astype("<f4").tobytes() for name in names for place in places[ranks.rank])
    per_token: dict[str, PerToken] = {name: [np.empty(0)] * len(owners) for name in names}
    for received, theirs in zip(ranks.all_gather(sent), places, strict=True):
        numbers, start = np.frombuffer(received, "<f4"), 0
        for name in names:
            for place in theirs:
                per_token[name][place] = numbers[start : start + lengths[place]].astype(np.float64)
                start += lengths[place]
    return per_token
