"""An exported adapter has the trained tensors bit for bit, and the same training starts from it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError
from asyncrl.files.checkpoints import FileEntry
from asyncrl.trainer.checkpoints.adapter_export import export_adapter
from asyncrl.trainer.checkpoints.checkpoint import Manifest, read_manifest
from asyncrl.trainer.learner import Learner
from tests.conftest import make_vision_model
from tests.trainer.checkpoints.writing import read_tensors, write

LORA: dict[str, Any] = {"rank": 2, "alpha": 3.0}


@pytest.fixture
def save(tmp_path, config, model_path, make_trajectories, tokenizer):
    def save(path: Path = model_path, **lora: Any) -> Path:
        """A checkpoint after one step, of a run with these settings of LoRA."""
        learner = Learner(config(trainer={"lora": lora, "lr": 0.05}), path)
        if path == model_path:
            learner.train(make_trajectories())
        snapshot, folder = learner.snapshot(), tmp_path / "checkpoints"
        return write(folder, step=1, policy_version=1, frontier={}, snapshot=snapshot, tokenizer=tokenizer)

    return save


def exported(folder: Path, out: Path, manifest: Manifest | None = None, **options: Any) -> dict[str, Any]:
    """Contents of adapter_config.json."""
    manifest = manifest or read_manifest(folder)
    export_adapter(folder, manifest, out, lora=Lora(**LORA), base="org/base", card="# it\n", **options)
    found: dict[str, Any] = json.loads((out / "adapter_config.json").read_text())
    return found


def test_it_has_the_trained_tensors_and_their_scale_and_nothing_of_the_model(save, tmp_path):
    folder = save(**LORA)
    config = exported(folder, tmp_path / "out", revision="0123")

    trained, found = read_tensors(folder, "adapters"), load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert found.keys() == trained.keys()
    assert all(torch.equal(found[name], trained[name]) for name in trained)
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 2, 3)
    assert (config["base_model_name_or_path"], config["revision"]) == ("org/base", "0123")
    kinds = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert config["target_modules"] == kinds
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "README.md"} <= names
    assert not names & {"config.json", "generation_config.json", "model.safetensors", "trainer", "manifest.json"}
    assert AutoTokenizer.from_pretrained(tmp_path / "out").decode([5, 9]) == "w5 w9"


def test_a_run_that_starts_from_it_publishes_what_the_trained_one_did(save, model_path, config, tmp_path):
    folder = save(**LORA)
    exported(folder, tmp_path / "out")
    start = Learner(config(trainer={"lora": LORA | {"path": str(tmp_path / "out")}}), model_path)
    merged = load_file(folder / "model.safetensors")
    assert all(torch.equal(weight, merged[name]) for name, weight in start.named_weights())


def test_adapters_of_several_ranks_become_one_file(save, tmp_path):
    folder = save(**LORA)
    whole = read_tensors(folder, "adapters")
    names = sorted(whole)
    (folder / "trainer" / "adapters.safetensors").unlink()
    for index, part in enumerate((names[:5], names[5:]), 1):
        file = folder / "trainer" / f"adapters-0000{index}-of-00002.safetensors"
        save_file({name: whole[name] for name in part}, file)
    files = {str(path.relative_to(folder)): FileEntry(0, "") for path in folder.rglob("*") if path.is_file()}
    exported(folder, tmp_path / "out", replace(read_manifest(folder), files=files))

    found = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], whole[name]) for name in whole)


def test_cast_adapters_are_the_rounded_ones(save, tmp_path):
    folder = save(**LORA)
    exported(folder, tmp_path / "out", dtype="bfloat16")
    trained, found = read_tensors(folder, "adapters"), load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert all(torch.equal(found[name], trained[name].to(torch.bfloat16)) for name in trained)


def test_targets_are_those_of_the_run(save, tmp_path):
    folder = save(**LORA, targets=["v_proj", "q_proj"])
    assert exported(folder, tmp_path / "out")["target_modules"] == ["q_proj", "v_proj"]


def test_layers_whose_last_names_a_vision_tower_has_too_are_named_in_full(save, tmp_path):
    make_vision_model(tmp_path / "base", "qwen2_5_vl")
    folder = save(tmp_path / "base", **LORA, targets=["gate_proj"])
    assert exported(folder, tmp_path / "out")["target_modules"] == [
        f"model.language_model.layers.{layer}.mlp.gate_proj" for layer in range(2)
    ]


def test_a_checkpoint_without_adapters_is_refused_and_leaves_nothing(save, tmp_path):
    folder = save()
    with pytest.raises(ConfigError, match="has no adapters, as its run trained the model itself; export it without"):
        exported(folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_a_directory_that_exists_is_not_written_over(save, tmp_path):
    folder = save(**LORA)
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="out exists and is never overwritten"):
        exported(folder, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
