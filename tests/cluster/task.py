"""The quickstart's task, for machines that have it in ``/root/task``."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from asyncrl.config.run_file import load_config, to_toml
from tests.cluster.deployment import TASK
from tests.cluster.namespace import ROOT

QUICKSTART = ROOT / "conf" / "quickstart.toml"
BASE = ROOT / "cache" / "step-sums"
SETTINGS = (
    "trainer.lr=5e-5",  # the quickstart's rate is meant for 40 steps
    "checkpoint.every_steps=5",
    "rollout.progress_every_s=1.0",
    "evaluation.every_versions=50",
)


def make_step_sums(folder: Path, steps: int, settings: Sequence[str]) -> None:
    """Copy the base model and its data to ``folder``, made first if need be, and write ``run.toml`` there."""
    subprocess.run([sys.executable, "-m", "asyncrl", "toy", "step-sums", BASE], check=True, stdout=sys.stderr, cwd=ROOT)
    shutil.copytree(BASE, folder)
    write_run_file(folder, QUICKSTART, (*SETTINGS, f"run.steps={steps}", *settings))


def write_run_file(folder: Path, config: Path, settings: Sequence[str]) -> None:
    """Write ``run.toml`` with the paths that the files of ``folder`` have on the machines."""
    paths = (
        f'model.path="{TASK}/model"',
        f'data.train="{TASK}/train.parquet"',
        f'data.held_out="{TASK}/held_out.parquet"',
    )
    (folder / "run.toml").write_text(to_toml(load_config(config, (*paths, *settings))))
