"""``python -m tests.trainer.memory_process FOLDER RANK``: one rank, which prints by how many bytes its memory grows."""

import gc
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from asyncrl.config.run_file import decode
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.packing.step import TrainingStep, TrainingTrajectory, trajectory_info
from asyncrl.trainer.ranks.ranks import RankGroup


class Case(msgspec.Struct):
    """A run to measure, and a small model that has the libraries ready before."""

    config: dict[str, Any]
    warm_up: str


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    case = msgspec.json.decode((folder / "case.json").read_bytes(), type=Case)
    size = decode(case.config).trainer.ranks
    store = dist.FileStore(str(folder / "store"), size)  # type: ignore[attr-defined]
    group = RankGroup(store, rank=rank, size=size, timeout_s=600.0)
    try:
        measure(case.config, Path(case.warm_up), group)
        grown = measure(case.config, Path(case.config["model"]["path"]), group)
    finally:
        group.close()
    sys.stdout.write(msgspec.json.encode(grown).decode())


def measure(raw: dict[str, Any], model: Path, group: RankGroup) -> dict[str, int]:
    """Bytes after loading, at the peak of the second step, which has moments, and while publishing."""
    config = decode(raw)
    trajectories = trajectories_of(raw)
    gc.collect()
    own, all_pages = status("RssAnon"), status("VmRSS")
    learner = Learner(config, model, ranks=group)
    gc.collect()
    loaded = status("RssAnon") - own  # without the pages of files
    infos = [trajectory_info(trajectory) for trajectory in trajectories]
    owners = learner.assign_ranks(infos)
    step = TrainingStep(infos, {i: trajectories[i] for i in range(len(owners)) if owners[i] == group.rank}, owners)
    learner.train(step)
    forget_peak()
    learner.train(step)
    stepped = status("VmHWM") - all_pages
    gc.collect()
    forget_peak()
    learner.gather_weights()
    return {"load": loaded, "step": stepped, "publish": status("VmHWM") - all_pages}


def trajectories_of(raw: dict[str, Any]) -> list[TrainingTrajectory]:
    """Trajectories of the longest lengths, with an advantage each."""
    config, random = decode(raw), np.random.default_rng(0)
    length = config.sampling.max_tokens
    return [
        TrainingTrajectory(
            group,
            np.full(config.data.max_prompt_tokens, group, np.int32),
            random.integers(0, 100, length).astype(np.int32),
            np.full(length, -4.0, np.float32),
            float(index % 2),
            index=index,
        )
        for group in range(config.schedule.groups_per_step)
        for index in range(config.schedule.group_size)
    ]


def status(key: str) -> int:
    """Bytes that the kernel counts for this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
