"""A synthetic run directory of ten steps, in the format the broker writes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.records.run_directory import RunDirectory, RunSummary

CONFIG = """
[run]
steps = 10
[model]
path = "models/tiny"
[schedule]
staleness = {staleness}
"""

MakeRun = Callable[..., RunDirectory]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Factory of run directories. Each step takes 2 s and trains on 1000 tokens; the reward of step s is s / 10."""

    def make(name: str = "tiny", staleness: float = 1.0) -> RunDirectory:
        now = [1_700_000_000.0]
        directory = RunDirectory.create(tmp_path / "runs", name)
        directory = RunDirectory(directory.path, wall_clock=lambda: now[0])
        directory.config.write_text(CONFIG.format(staleness=staleness))
        directory.append_event("run.started", seed=0)
        for step in range(10):
            now[0] += 2
            directory.append_metrics(
                {
                    "step": step,
                    "time_s": 2.0 * (step + 1),
                    "reward": step / 10,
                    "length_mean": 30.0,
                    "length_max": 40 + step,
                    "staleness_mean": 0.5,
                    "staleness_max": 1,
                    "tokens": 1000,
                    "tokens_per_s": 500.0,
                    "step_s": 2.0,
                    "wait_trainer": 0.25,
                    "wait_rollout": 0.5,
                    "pause_s": 0.004,
                    "logprob_gap_mean": 2e-6,
                    "logprob_gap_max": 1e-5,
                    "logprob_gap_tokens": 800,
                    "grad_norm": float("nan"),
                }
            )
        for version, accuracy in ((0, 0.25), (10, 0.75)):
            directory.append_event(
                "eval.finished", policy_version=version, accuracy=accuracy, num_prompts=64, time_s=2.0 * version
            )
        return directory

    return make


@pytest.fixture
def summary() -> Callable[..., RunSummary]:
    """Factory of summaries that match `make_run`."""

    def build(**fields: object) -> RunSummary:
        values = {
            "name": "tiny",
            "status": "finished",
            "seed": 0,
            "steps": 10,
            "steps_planned": 10,
            "versions": 10,
            "wall_s": 20.0,
            "base_accuracy": 0.25,
            "held_out_accuracy": 0.75,
            "trained_tokens": 10_000,
            "staleness_mean": 0.5,
            "staleness_max": 1,
            "logprob_gap_mean": 2e-6,
            "logprob_gap_max": 1e-5,
        }
        return RunSummary(**(values | fields))  # type: ignore[arg-type]

    return build
