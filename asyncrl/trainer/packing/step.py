"""
One step's trajectories: every one as the broker describes it, and the tokens of those this rank trains on.

    Batch ─▶ descriptions of all ─▶ who trains which ─▶ fetch one's own ─▶ Step
                  the same on every rank                 apart on every rank

Scores and lengths are enough for most advantages, so a rank computes those of the whole step without having its tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from asyncrl.algo.outcomes import Outcome
from asyncrl.errors import AsyncrlError
from asyncrl.trainer.packing.assignment import passes
from asyncrl.trainer.packing.batch import TrainingTrajectory
from asyncrl.trainer.packing.micro_batches import Size, by_group
from asyncrl.trainer.ranks.ranks import Ranks

NOBODY = -1
"""Owner of a trajectory that teaches nothing: its tokens are not looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class TrajectoryInfo:
    """One trajectory without its tokens."""

    index: int
    """Within its group."""
    prompt_length: int
    outcome: Outcome

    @property
    def size(self) -> Size:
        """In tokens."""
        return Size(self.outcome.group_id, self.prompt_length, self.outcome.length)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """
    Whole groups, trajectories of a group adjacent.

    Raises:
        AsyncrlError: There are none, or a group is scattered.
    """

    described: Sequence[TrajectoryInfo]
    """[S], in the broker's order."""
    trajectories: Mapping[int, TrainingTrajectory]
    """This rank's, by their place in ``described``."""
    owner: Sequence[int]
    """[S] rank that trains each, or `NOBODY`."""

    def __post_init__(self) -> None:
        runs = [group_id for group_id, _ in groupby(self.described, key=lambda one: one.outcome.group_id)]
        if not runs or len(set(runs)) != len(runs):
            raise AsyncrlError(
                f"train: expected whole groups, samples of a group adjacent; got {len(self.described)} samples of "
                f"{len(set(runs))} groups in {len(runs)} runs"
            )

    @property
    def outcomes(self) -> list[Outcome]:
        """[S]."""
        return [one.outcome for one in self.described]

    def mini_batches(self, number: int) -> list[list[int]]:
        """
        Places in ``described``, in so many parts of whole groups, as equal as can be; fewer if there are fewer groups.
        """
        groups = by_group([one.size for one in self.described])
        number = min(number, len(groups))
        bounds = [len(groups) * part // number for part in range(number + 1)]
        return [[place for group in groups[start:end] for place in group] for start, end in pairwise(bounds)]

    def of(self, places: Sequence[int]) -> list[TrainingTrajectory]:
        """Those at ``places``, which this rank has."""
        return [self.trajectories[place] for place in places]

    def passes(self, places: Sequence[int], ranks: Ranks, max_tokens: int) -> list[list[int]]:
        """Micro-batches of this rank's share of ``places``: as many as every other rank has."""
        sizes = [one.size for one in self.described]
        return passes(places, sizes, self.owner, rank=ranks.rank, ranks=ranks.size, max_tokens=max_tokens)


def whole(samples: Iterable[TrainingTrajectory]) -> Step:
    """A step all of whose tokens are here."""
    samples = list(samples)
    return Step([described(sample) for sample in samples], dict(enumerate(samples)), [0] * len(samples))


def described(sample: TrainingTrajectory) -> TrajectoryInfo:
    """A trajectory without its tokens."""
    outcome = Outcome(
        group_id=sample.group_id,
        length=len(sample.completion_ids),
        reward=sample.reward,
        metrics=sample.metrics,
    )
    return TrajectoryInfo(sample.index, len(sample.prompt_ids), outcome)
