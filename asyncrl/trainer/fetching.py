"""A batch of the broker's becomes a step of this rank's: who trains what, and the tokens of one's own."""

from collections.abc import Sequence

import numpy as np

from asyncrl.algo.outcomes import Outcome
from asyncrl.client.payloads import PayloadClient
from asyncrl.errors import LinkError
from asyncrl.messages import Batch, ScoredTrajectory, Trajectory
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.packing.batch import TrainingTrajectory
from asyncrl.trainer.packing.step import Step, TrajectoryInfo

FETCH_S = 120.0
"""A spool that does not answer for this long has failed."""


async def fetch_step(batch: Batch, learner: Learner, payloads: PayloadClient, *, rank: int, group_size: int) -> Step:
    """
    Fetch what ``rank`` trains of a batch, and no more.

    Args:
        group_size: Trajectories of a prompt to train on; what has a higher index is a greedy one to compare with.

    Raises:
        LinkError: The spool did not answer in time.
        DecodeError: The spool lost a trajectory.
    """
    greedy = {sample.unit.group_id: sample.reward for sample in batch.trajectories if sample.unit.index >= group_size}
    sampled = [sample for sample in batch.trajectories if sample.unit.index < group_size]
    described = [_described(sample, greedy.get(sample.unit.group_id)) for sample in sampled]
    owner = learner.owners(described)
    places = [place for place in range(len(owner)) if owner[place] == rank]
    return Step(described, await _fetch(batch, sampled, places, payloads), owner)


async def _fetch(
    batch: Batch, sampled: Sequence[ScoredTrajectory], places: Sequence[int], payloads: PayloadClient
) -> dict[int, TrainingTrajectory]:
    wanted = [sampled[place] for place in places]
    try:
        trajectories = await payloads.fetch_all([sample.ref for sample in wanted], FETCH_S)
    except TimeoutError:
        raise LinkError(f"the spool did not send the batch of step {batch.step} within {FETCH_S:g} s") from None
    return {
        place: _training_sample(trajectory, sample)
        for place, trajectory, sample in zip(places, trajectories, wanted, strict=True)
    }


def _described(sample: ScoredTrajectory, baseline: float | None) -> TrajectoryInfo:
    outcome = Outcome(
        group_id=sample.unit.group_id,
        length=sample.summary.num_tokens,
        reward=sample.reward,
        metrics=sample.metrics,
        baseline=baseline,
    )
    return TrajectoryInfo(sample.unit.index, sample.summary.prompt_tokens, outcome)


def _training_sample(trajectory: Trajectory, sample: ScoredTrajectory) -> TrainingTrajectory:
    return TrainingTrajectory(
        group_id=trajectory.unit.group_id,
        prompt_ids=np.frombuffer(trajectory.prompt_ids, "<i4"),
        completion_ids=np.frombuffer(trajectory.completion_ids, "<i4"),
        behavior_logprobs=np.frombuffer(trajectory.behavior_logprobs, "<f4"),
        reward=sample.reward,
        spans=trajectory.spans,
        index=sample.unit.index,
        metrics=sample.metrics,
    )
