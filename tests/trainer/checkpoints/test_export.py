"""An exported adapter has the trained tensors bit for bit, and the same training starts from it."""

import json
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError, LedgerError, RunFailed
from asyncrl.files.checkpoints import BEST, MANIFEST, FileEntry
from asyncrl.trainer.checkpoints import checkpoint
from asyncrl.trainer.checkpoints.checkpoint import Manifest, read_manifest
from asyncrl.trainer.checkpoints.export import export, export_adapter, find_checkpoint
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


# ── test export ───────────────────────────────────────────────────────────────────────────────
# An export has the trained weights, loads with plain transformers, and is complete or absent.

PROMPT = torch.tensor([[5, 9, 17]])


@pytest.fixture
def learner(model_path, config, make_trajectories):
    """It has learned something: a step large enough to change what greedy decoding writes."""
    learner = Learner(config(trainer={"lr": 0.05}), model_path)
    learner.train(make_trajectories())
    return learner


@pytest.fixture
def export_save(tmp_path, learner, tokenizer):
    def export_save(step: int) -> Path:
        return write(
            tmp_path / "checkpoints",
            step=step,
            policy_version=step,
            frontier={},
            snapshot=learner.snapshot(),
            tokenizer=tokenizer,
        )

    return export_save


def greedy(model: Any, dtype: torch.dtype = torch.float32) -> list[int]:
    written = model.to(dtype).eval().generate(PROMPT, max_new_tokens=16, do_sample=False, eos_token_id=None)
    return list(written[0, 3:].tolist())


def test_plain_transformers_generates_the_same_as_the_trained_model(export_save, learner, model_path, tmp_path):
    folder = export_save(7)
    export(folder, checkpoint.verify(folder), tmp_path / "out", card="# it")

    trained = AutoModelForCausalLM.from_pretrained(model_path)
    before = greedy(trained)
    trained.load_state_dict(dict(learner.named_weights()), strict=False)  # Tied weights come once.
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")

    assert greedy(exported) == greedy(trained) != before
    assert AutoTokenizer.from_pretrained(tmp_path / "out").decode([5, 9]) == "w5 w9"


def test_it_holds_the_model_its_tokenizer_and_the_card_and_nothing_else(export_save, tmp_path):
    folder = export_save(7)
    export(folder, checkpoint.verify(folder), tmp_path / "out", card="# it\n")

    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    assert not names & {"trainer", MANIFEST}
    assert (tmp_path / "out" / "README.md").read_text() == "# it\n"
    assert "asyncrl.toml" not in names
    export(folder, checkpoint.verify(folder), tmp_path / "asked", card="", settings="data.as_chat = true\n")
    assert (tmp_path / "asked" / "asyncrl.toml").read_text() == "data.as_chat = true\n"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_cast_weights_are_the_rounded_ones_and_the_config_says_so(export_save, tmp_path):
    folder = export_save(7)
    export(folder, checkpoint.verify(folder), tmp_path / "out", card="", dtype="bfloat16")

    whole, cast = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "out"))
    assert whole.keys() == cast.keys()
    assert all(torch.equal(cast[name], whole[name].to(torch.bfloat16)) for name in whole)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.dtype == torch.bfloat16
    assert len(greedy(loaded, torch.bfloat16)) == 16


def test_the_index_of_a_model_in_several_files_is_cast_with_it(export_save, learner, tmp_path):
    folder = export_save(7)
    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="2KB")
    files = {str(path.relative_to(folder)): FileEntry(0, "") for path in folder.rglob("*") if path.is_file()}
    manifest = checkpoint.Manifest(step=7, policy_version=7, random_state=b"", files=files)
    export(folder, manifest, tmp_path / "out", card="", dtype="bfloat16")

    before, after = (
        json.loads((path / "model.safetensors.index.json").read_text()) for path in (folder, tmp_path / "out")
    )
    assert len(set(after["weight_map"].values())) > 1
    assert after["weight_map"] == before["weight_map"]
    assert after["metadata"]["total_size"] * 2 == before["metadata"]["total_size"]
    assert greedy(AutoModelForCausalLM.from_pretrained(tmp_path / "out"), torch.bfloat16)


def test_a_directory_that_exists_is_not_written_over_of_export(export_save, tmp_path):
    folder = export_save(7)
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="out exists and is never overwritten"):
        export(folder, checkpoint.verify(folder), tmp_path / "out", card="")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_full_disk_leaves_nothing_behind(export_save, tmp_path, dtype):
    """Simulated by a limit on the file size of this process."""
    folder = export_save(7)
    manifest = checkpoint.verify(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limits[1]))
    try:
        with pytest.raises(RunFailed, match=r"cannot write .*out"):
            export(folder, manifest, tmp_path / "out", card="", dtype=dtype)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints"]


# ── which checkpoint ────────────────────────────────────────────────────────────────────────


def test_the_newest_intact_checkpoint_is_the_default(export_save):
    old, new = export_save(3), export_save(7)
    assert find_checkpoint(old.parent, None)[0] == new
    assert find_checkpoint(old.parent, 3)[0] == old
    (new / "config.json").write_text("{}")
    with capture_logs():
        assert find_checkpoint(old.parent, None)[0] == old


def test_the_best_is_the_one_in_best_json(export_save):
    old, _ = export_save(3), export_save(7)
    (old.parent / BEST).write_text('{"step": 3, "policy_version": 3, "metric": "accuracy", "value": 0.5}')
    assert find_checkpoint(old.parent, "best")[0] == old


def test_a_damaged_one_is_not_exported(export_save):
    folder = export_save(3)
    raw = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(LedgerError, match="differs from what was written"):
        find_checkpoint(folder.parent, 3)


def test_a_missing_checkpoint_is_refused_with_the_existing_ones(export_save, tmp_path):
    folder = export_save(3)
    with pytest.raises(ConfigError, match=r"no checkpoint of step 4 .* existing steps: 3"):
        find_checkpoint(folder.parent, 4)
    with pytest.raises(ConfigError, match=r"no intact checkpoint in .*: none, and the configuration"):
        find_checkpoint(tmp_path / "run" / "checkpoints", None)
    with pytest.raises(ConfigError, match="keep_best"):
        find_checkpoint(folder.parent, "best")
    (folder.parent / BEST).write_text("{")
    with pytest.raises(LedgerError, match="damaged"):
        find_checkpoint(folder.parent, "best")
