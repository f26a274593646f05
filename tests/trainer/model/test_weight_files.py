import json

import torch
from safetensors.torch import save_file

from asyncrl.trainer.model.weight_files import open_weights


def test_only_the_slices_that_are_asked_for_are_read(tmp_path):
    weights = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(2, dtype=torch.bfloat16)}
    save_file(weights, tmp_path / "model.safetensors")
    with open_weights(tmp_path) as files:
        assert torch.equal(files.read("a", (slice(1, 3), slice(0, 2))), weights["a"][1:3, :2])
        assert files.read("b", (slice(0, 2),)).dtype == torch.bfloat16
        assert "a" in files
        assert "c" not in files


def test_a_directory_may_have_several_files(tmp_path):
    for number, name in enumerate("ab"):
        save_file({name: torch.full((2,), float(number))}, tmp_path / f"{name}.safetensors")
    index = {"metadata": {}, "weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with open_weights(tmp_path) as files:
        assert files.read("b", (slice(0, 2),)).tolist() == [1.0, 1.0]
