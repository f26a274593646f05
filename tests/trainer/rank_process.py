"""``python -m tests.trainer.rank_process FOLDER RANK``: one rank of the cases in a folder, one after the other."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from asyncrl.config.run_file import decode
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.packing.step import Step, trajectory_info
from asyncrl.trainer.ranks.ranks import RankGroup
from tests.trainer.ragged_trajectories import ragged_trajectories


class Case(msgspec.Struct):
    """A step, and who trains it."""

    name: str
    size: int
    config: dict[str, Any]
    model: str
    seed: int


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    for case in msgspec.json.decode((folder / "cases.json").read_bytes(), type=list[Case]):
        if rank < case.size:
            run(case, folder, rank)


def run(case: Case, folder: Path, rank: int) -> None:
    store = dist.FileStore(str(folder / f"{case.name}.store"), case.size)  # type: ignore[attr-defined]
    group = RankGroup(store, rank=rank, size=case.size, timeout_s=60.0)
    try:
        learner = Learner(decode(case.config), Path(case.model), ranks=group)
        trajectories = ragged_trajectories(seed=case.seed)
        infos = [trajectory_info(trajectory) for trajectory in trajectories]
        owners = learner.assign_ranks(infos)
        step = Step(infos, {i: trajectories[i] for i in range(len(owners)) if owners[i] == rank}, owners)
        metrics = learner.train(step)
        published = {name: weight.clone() for name, weight in learner.named_weights()}
        snapshot = learner.snapshot()
    finally:
        group.close()
    if rank == 0:
        save_file(published, folder / f"{case.name}.published")
        for name, tensors in snapshot.tensors.items():
            save_file(tensors, folder / f"{case.name}.{name}")
        (folder / f"{case.name}.metrics").write_bytes(msgspec.json.encode(metrics))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
