"""Turn a batch of the broker into this rank's step: assign trajectories to ranks, and fetch this rank's tokens."""

import numpy as np

from asyncrl.algo.outcomes import Outcome
from asyncrl.client.payloads import PayloadClient
from asyncrl.errors import LinkError
from asyncrl.messages import Batch, ScoredTrajectory, Trajectory
from asyncrl.trainer.packing.batch import TrainingTrajectory
from asyncrl.trainer.packing.step import Step, TrajectoryInfo
from asyncrl.trainer.trainable import Trainable

FETCH_S = 120.0
"""Time limit for the spool to send all trajectories of a rank."""


async def fetch_step(batch: Batch, learner: Trainable, payloads: PayloadClient, *, rank: int, group_size: int) -> Step:
    """
    Fetch the trajectories of a batch that ``rank`` trains.

    Args:
        group_size: Trajectories of a prompt to train on. One with a higher index is greedy: not trained on, its reward
            is the baseline of its group.

    Raises:
        LinkError: The spool did not answer in time.
        DecodeError: The spool lost a trajectory.
    """
    greedy = {scored.unit.group_id: scored.reward for scored in batch.trajectories if scored.unit.index >= group_size}
    sampled = [scored for scored in batch.trajectories if scored.unit.index < group_size]
    infos = [_info(scored, greedy.get(scored.unit.group_id)) for scored in sampled]
    owners = learner.assign_ranks(infos)
    own = {place: sampled[place] for place, owner in enumerate(owners) if owner == rank}
    try:
        fetched = await payloads.fetch_all([scored.ref for scored in own.values()], FETCH_S)
    except TimeoutError:
        raise LinkError(f"the spool did not send the batch of step {batch.step} within {FETCH_S:g} s") from None
    trajectories = {
        place: _training_trajectory(trajectory, own[place]) for place, trajectory in zip(own, fetched, strict=True)
    }
    return Step(infos, trajectories, owners)


def _info(scored: ScoredTrajectory, baseline: float | None) -> TrajectoryInfo:
    outcome = Outcome(
        group_id=scored.unit.group_id,
        length=scored.summary.num_tokens,
        reward=scored.reward,
        metrics=scored.metrics,
        baseline=baseline,
    )
    return TrajectoryInfo(scored.unit.index, scored.summary.prompt_tokens, outcome)


def _training_trajectory(trajectory: Trajectory, scored: ScoredTrajectory) -> TrainingTrajectory:
    return TrainingTrajectory(
        group_id=trajectory.unit.group_id,
        prompt_ids=np.frombuffer(trajectory.prompt_ids, "<i4"),
        completion_ids=np.frombuffer(trajectory.completion_ids, "<i4"),
        behavior_logprobs=np.frombuffer(trajectory.behavior_logprobs, "<f4"),
        reward=scored.reward,
        spans=trajectory.spans,
        index=scored.unit.index,
        metrics=scored.metrics,
    )
