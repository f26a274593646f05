"""
``python -m tests.trainer.rank_processes FOLDER SIZE``: ranks that run the cases in a folder, one after the other.

Ranks are forks, because importing torch takes longer than all cases.
"""

import multiprocessing
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.trainer.checkpoints.checkpoint import take, write_part
from asyncrl.trainer.checkpoints.snapshot import TENSORS, Stored, open_tensors
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.packing.step import TrainingStep, TrainingTrajectory, first_sharing, trajectory_info
from asyncrl.trainer.ranks.ranks import RankGroup
from tests.trainer.episode_trajectories import episodes
from tests.trainer.pictured_trajectories import pictured_trajectories
from tests.trainer.ragged_trajectories import ragged_trajectories

PARTIAL = ".step_000001.partial"


class Case(msgspec.Struct):
    """Steps, and who trains them; with ``resumes``, the moments of another case in place of steps."""

    name: str
    size: int
    config: dict[str, Any]
    model: str
    seed: int
    resumes: str = ""
    num_steps: int = 1


def main(folder: Path, size: int) -> int:
    """Returns the number of ranks that failed."""
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=run_all, args=(folder, rank)) for rank in range(size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return sum(rank.exitcode != 0 for rank in ranks)


def run_all(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    for case in msgspec.json.decode((folder / "cases.json").read_bytes(), type=list[Case]):
        if rank < case.size:
            run(case, folder, rank)


def run(case: Case, folder: Path, rank: int) -> None:
    store = dist.FileStore(str(folder / f"{case.name}.store"), case.size)  # type: ignore[attr-defined]
    config = decode(case.config)
    sharing = config.trainer.sequence_parallel
    group = RankGroup(
        store,
        rank=rank,
        size=case.size,
        timeout_s=60.0,
        shard_size=config.trainer.shard_size,
        sequence_parallel=sharing,
    )
    try:
        learner = Learner(config, Path(case.model), ranks=group)
        if case.resumes:
            with open_moments(folder / case.resumes) as moments:
                learner.resume(1, moments)
            write_part(folder / case.name, 1, take(folder / case.name, 1, learner.snapshot))
            return
        for number in range(case.num_steps):
            metrics = learner.train(own_part(learner, config, case.seed + number, first_sharing(rank, sharing)))
        published = {name: weight.clone() for name, weight in learner.named_weights()}
        snapshot = take(folder / case.name, 1, learner.snapshot)
    finally:
        group.close()
    write_part(folder / case.name, 1, snapshot)
    if rank == 0:
        save_file(published, folder / f"{case.name}.published")
        (folder / f"{case.name}.metrics").write_bytes(msgspec.json.encode(metrics))


def own_part(learner: Learner, config: Config, seed: int, first: int) -> TrainingStep:
    """The step of this seed with the trajectories of one rank, or of the ranks that share its rows."""
    trajectories = trajectories_for(learner, seed, has_turns=config.environment.is_set)
    infos = [trajectory_info(trajectory) for trajectory in trajectories]
    owners = learner.assign_ranks(infos)
    return TrainingStep(infos, {i: trajectories[i] for i in range(len(owners)) if owners[i] == first}, owners)


def trajectories_for(learner: Learner, seed: int, *, has_turns: bool = False) -> list[TrainingTrajectory]:
    """The step of this seed, with pictures if the model reads them."""
    if has_turns:
        return episodes(num_groups=6, seed=seed)
    if processor := learner.policy.processor:
        return pictured_trajectories(processor, num_groups=6, seed=seed)
    return ragged_trajectories(seed=seed, routes=learner.route_shape)


def open_moments(checkpoints: Path) -> AbstractContextManager[Mapping[str, Stored]]:
    """Moments of all ranks that wrote a step; a context manager."""
    written = checkpoints / PARTIAL
    return open_tensors(written / TENSORS, [str(path.relative_to(written)) for path in written.rglob("*.*")])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
