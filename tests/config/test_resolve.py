from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode, with_absolute_paths, with_backend, with_steps
from asyncrl.errors import ConfigError

BASE = Path("/srv/run")


def test_relative_paths_are_resolved_on_the_brokers_machine() -> None:
    raw = {
        "model": {"path": "models/a"},
        "data": {"train": ["a.parquet", "/data/b.parquet"], "held_out": "c.parquet"},
        "reward": {"function": "rewards.py:score"},
    }
    config = with_absolute_paths(decode(raw), BASE)
    assert config.model.path == "/srv/run/models/a"
    assert config.data.train == ["/srv/run/a.parquet", "/data/b.parquet"]
    assert config.data.held_out == "/srv/run/c.parquet"
    assert config.reward.function == "/srv/run/rewards.py:score"


def test_built_in_names_and_empty_paths_stay() -> None:
    config = decode({"model": {"path": "/m"}, "data": {"train": "/t"}, "reward": {"function": "gsm8k"}})
    assert with_absolute_paths(config, BASE) == config


def devices(trainer: str, rollout: str, engine: str = "vllm", backend: str = "auto") -> Config:
    sections: dict[str, Any] = {"model": {"path": "m"}, "data": {"train": "t"}, "weights": {"backend": backend}}
    return decode(sections | {"trainer": {"device": trainer}, "rollout": {"device": rollout, "engine": engine}})


@pytest.mark.parametrize(
    ("trainer", "rollout", "engine", "backend"),
    [
        ("cuda", "cuda", "vllm", "nccl"),
        ("cuda", "cuda", "transformers", "nccl"),
        ("cuda", "auto", "vllm", "nccl"),
        ("npu", "auto", "vllm", "hccl"),
        ("npu", "npu", "transformers", "hccl"),
        ("cuda", "auto", "transformers", "gloo"),  # on the CPU
        ("cuda", "cpu", "vllm", "gloo"),
        ("cuda", "npu", "vllm", "gloo"),
        ("cpu", "cuda", "vllm", "gloo"),
        ("cpu", "auto", "vllm", "gloo"),
    ],
)
def test_weights_move_by_the_library_that_trainer_and_all_rollouts_can_use(
    trainer: str, rollout: str, engine: str, backend: str
) -> None:
    assert with_backend(devices(trainer, rollout, engine)).weights.backend == backend


def test_a_trainer_and_rollouts_that_share_devices_share_memory() -> None:
    colocated = devices("cuda", "cuda")
    colocated = replace(colocated, rollout=replace(colocated.rollout, colocated=True))
    assert with_backend(colocated).weights.backend == "shared"
    assert with_backend(devices("cuda", "cuda"), shares_device=True).weights.backend == "shared"
    with pytest.raises(ConfigError, match="'nccl', which needs a separate device for each end"):
        with_backend(devices("cuda", "cuda", backend="nccl"), shares_device=True)


def test_a_backend_that_is_set_stays() -> None:
    config = devices("cuda", "cuda", backend="gloo")
    assert with_backend(config) is config


# ── epochs ──────────────────────────────────────────────────────────────────────────────────


def lasting(epochs: float, groups: int = 8, **sections: Any) -> Config:
    least = {"model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"groups_per_step": groups}}
    return decode({**least, "run": {"epochs": epochs}, **sections})


@pytest.mark.parametrize(
    ("epochs", "rows", "groups", "steps"),
    [(15, 7473, 1024, 109), (1, 8, 8, 1), (2, 15, 8, 3), (0.5, 100, 8, 6), (0.29, 100, 1, 29)],
)
def test_epochs_are_the_whole_steps_that_fit_into_their_rows(epochs: float, rows: int, groups: int, steps: int) -> None:
    run = with_steps(lasting(epochs, groups), rows).run
    assert (run.steps, run.epochs) == (steps, None)


def test_steps_stay_as_they_are_without_epochs() -> None:
    config = devices("cuda", "cuda")
    assert with_steps(config, 10) is config


def test_epochs_that_are_no_step_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"run\.epochs is 0\.1 and data\.train has 10 rows: that is less than the 8 "):
        with_steps(lasting(0.1), 10)


def test_the_warm_up_is_compared_with_the_steps_of_the_epochs() -> None:
    config = lasting(1, trainer={"warmup_steps": 100})
    with pytest.raises(ConfigError, match=r"warmup_steps is 100, longer than the run \(2 steps\)"):
        with_steps(config, 16)
