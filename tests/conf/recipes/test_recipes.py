"""Every recipe runs at tiny scale on a CPU, and every setting in it is read by the code that claims it."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.config.config import Config
from asyncrl.config.run_file import load_config
from asyncrl.records.run_directory import RunDirectory
from asyncrl.tools.published_data import dataset_of
from asyncrl.tools.toy.tiny import write_sample
from tests.conf.recipes import recording, sparse_model, terms, updates
from tests.conf.recipes.claims import CLAIMS, ignored, settings

RECIPES = Path("conf/recipes").resolve()
NAMES = sorted(path.stem for path in RECIPES.glob("*.toml"))
RUN = "gsm8k-qwen3-8b-grpo"
MANY = pytest.mark.long("half a minute for each of the other recipes")
STEPS = 3

VLLM_ARGUMENTS = """
import sys
from pathlib import Path
from asyncrl.config.run_file import load_config
from asyncrl.rollout.engines.vllm.arguments import CONFIGURED, FIXED, engine_args
config = load_config(Path(sys.argv[1]))
engine_args(config, {*CONFIGURED, *FIXED, *config.rollout.vllm.engine_args}, is_cpu=False)
"""
"""At tiny scale the engine is not vLLM: its arguments are made beside the run."""


def keys(name: str) -> list[str]:
    return list(settings(tomllib.loads((RECIPES / f"{name}.toml").read_text(encoding="utf-8"))))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Working directory of the runs, which share the tiny models and data."""
    folder = tmp_path_factory.mktemp("recipes")
    yield folder
    shutil.rmtree(folder)


def run(*command: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=recording.environment({recording.VARIABLE: folder / "reads", updates.VARIABLE: folder / "updates"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.slow("a run of real processes")
@pytest.mark.parametrize("name", [RUN, *(pytest.param(name, marks=MANY) for name in NAMES if name != RUN)])
def test_a_recipe_learns_at_tiny_scale_and_each_of_its_settings_is_honoured(name: str, cache: Path) -> None:
    recipe = str(RECIPES / f"{name}.toml")
    run("-m", "asyncrl", "run", recipe, "--scale", "tiny", "--set", f"run.steps={STEPS}", folder=cache)
    run("-c", VLLM_ARGUMENTS, recipe, folder=cache)

    directory = RunDirectory(cache / "runs" / name)
    summary = directory.finished_summary()
    assert summary is not None
    assert summary.steps == STEPS
    found, made = recording.reads(cache / "reads"), updates.updates(cache / "updates")
    shutil.rmtree(cache / "reads")
    shutil.rmtree(cache / "updates")
    asked = [key.replace("run.epochs", "run.steps") for key in keys(name)]  # by --set
    assert ignored(asked, found) == []
    for key in asked:
        without = found | {key: found[key] - {CLAIMS[key]}}
        assert ignored(asked, without) == [key]
    assert_learns(load_config(cache / "runs" / name / "config.toml"), made)


def assert_learns(config: Config, made: list[dict[str, Any]]) -> None:
    """Every step has a gradient, and each term of each update is the one computed alone."""
    assert len(made) == STEPS * config.trainer.mini_batches
    for number in range(0, len(made), config.trainer.mini_batches):
        assert any(update["metrics"]["grad_norm"] > 0 for update in made[number : number + config.trainer.mini_batches])
    for update in made:
        alone, metrics = terms.of_update(config, update), update["metrics"]
        for place, advantages in alone.advantages.items():
            assert np.allclose(update["advantages"][place], advantages, rtol=1e-4, atol=1e-5)
            if update["importance"]:
                assert np.allclose(update["importance"][place], alone.importance[place], rtol=1e-4)
            if update["keep"]:
                assert np.array_equal(update["keep"][place], alone.keep[place])
        assert metrics["loss"] == pytest.approx(alone.policy_loss + alone.kl_loss, rel=1e-3, abs=1e-6)
        assert metrics.get("clip_fraction", 0.0) == pytest.approx(alone.clip_fraction, abs=1e-6)
        assert metrics.get("kl_ref", 0.0) == pytest.approx(alone.kl_ref, rel=1e-3, abs=1e-6)


def variants() -> list[tuple[str, str, list[str]]]:
    """Recipe, name and overrides of each variant that the head of a recipe describes, in order."""
    found: dict[tuple[str, str], str] = {}
    for name in NAMES:
        head = (RECIPES / f"{name}.toml").read_text(encoding="utf-8").partition("\n[")[0]
        label = ""
        for line in head.splitlines():
            if begins := re.match(r"# (\w[\w ]*?) {2,}", line):
                label = begins[1]
            found[name, label] = found.get((name, label), "") + line
    given = {key: re.findall(r"--set ('[^']*'|\S+)", text) for key, text in found.items() if "--scale" not in text}
    return [(*key, [one.strip("'") for one in overrides]) for key, overrides in given.items() if key[1] and overrides]


@pytest.mark.parametrize(("name", "variant", "overrides"), variants(), ids=lambda value: str(value)[:40])
def test_a_variant_in_the_head_of_a_recipe_is_valid(name: str, variant: str, overrides: list[str]) -> None:
    varied = load_config(RECIPES / f"{name}.toml", overrides)
    assert varied != load_config(RECIPES / f"{name}.toml"), variant


def test_the_first_pull_request_of_one_step_off_has_three_placements() -> None:
    placements = [variant for name, variant, _ in variants() if name == "gsm8k-qwen2.5-3b-one-step-off"]
    assert placements[:2] == ["Colocated", "Split"]


MACHINES = {
    "gsm8k-qwen2.5-3b-one-step-off": ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, "80GB"),
    "gsm8k-qwen3-8b-grpo": ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, "80GB"),
    "geo3k-qwen3-vl-8b-npu": ({"ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, range(32)))}, "64GB"),
    "geo3k-qwen3-vl-8b-sync-npu": ({"ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, range(8)))}, "64GB"),
    "dapo-qwen3-30b-a3b-sync-npu": ({"ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, range(16)))}, "64GB"),
    "dapo-qwen3-30b-a3b-npu": ({"ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, range(32)))}, "64GB"),
}
"""Devices that each recipe is for, and the memory of each."""


@pytest.mark.slow("plans with the real shapes")
@pytest.mark.parametrize("name", [RUN, *(pytest.param(name, marks=MANY) for name in NAMES if name != RUN)])
def test_a_recipe_fits_the_devices_that_it_is_for(name: str, tmp_path: Path) -> None:
    pytest.importorskip("vllm", exc_type=ImportError)
    recipe = RECIPES / f"{name}.toml"
    config = load_config(recipe)
    sparse_model.make(Path(config.model.path).name, tmp_path / "models")
    for path in map(Path, (*config.data.train_files, *config.data.held_out_files)):
        dataset = dataset_of(path)
        assert dataset is not None
        write_sample(dataset, tmp_path / path, split=path.stem, seed=0)
    devices, memory = MACHINES[name]
    # The sample has fewer rows than a step. Without torchvision, vLLM reads no pictures and a dry run says so.
    is_dry_run = config.data.image_column not in recipe.read_text(encoding="utf-8") or find_spec("torchvision")
    command = ["run", str(recipe), "--dry-run"] if is_dry_run else ["plan", str(recipe), "--memory"]
    memory_options = ["--device-memory", memory, "--host-memory", "1.5TB"]
    done = subprocess.run(
        [sys.executable, "-m", "asyncrl", *command, *memory_options, "--set", "run.steps=100"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(RECIPES.parents[1])} | devices,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("would start: 1 broker" if is_dry_run else "trainer, step") in done.stdout
    assert "does not fit" not in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_each_setting_of_a_recipe_is_claimed(name: str) -> None:
    assert [key for key in keys(name) if key not in CLAIMS] == []


def test_a_setting_that_only_other_code_reads_is_ignored() -> None:
    assert ignored(["trainer.lr"], {"trainer.lr": {"asyncrl.config.checks.check"}}) == ["trainer.lr"]
    assert ignored(["trainer.lr"], {"trainer.lr": {CLAIMS["trainer.lr"]}}) == []
    assert ignored(["trainer.unheard_of"], {"trainer.unheard_of": {"asyncrl.trainer.actor"}}) == ["trainer.unheard_of"]
