"""A random model has the architecture that a recipe's model has, by its config or its published name."""

from pathlib import Path

import pytest
import torch

from asyncrl.errors import ConfigError
from asyncrl.toy.tiny.architectures import architecture_of, random_model
from asyncrl.toy.vocabulary import tokenizer_from_texts


@pytest.mark.parametrize(
    ("path", "architecture"),
    [
        ("models/Qwen3-8B", "qwen3"),
        ("/mnt/qwen3-0.6b-base", "qwen3"),
        ("models/Qwen3-30B-A3B-Instruct-2507", "qwen3_moe"),
        ("Qwen/Qwen2.5-3B-Instruct", "qwen2"),
        ("models/Qwen2.5-Math-7B", "qwen2"),
    ],
)
def test_a_published_name_tells_the_architecture(path: str, architecture: str) -> None:
    assert architecture_of(Path(path)) == architecture


def test_a_directory_tells_its_own(tmp_path: Path) -> None:
    model = tmp_path / "Qwen3-30B-A3B"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen2"}')
    assert architecture_of(model) == "qwen2"
    (model / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(ConfigError, match="has model_type 'mamba'; --scale tiny makes models of qwen2, "):
        architecture_of(model)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.path=models/mine is not here, and its name is not a published one"):
        architecture_of(Path("models/mine"))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "qwen3_moe"])
def test_a_model_is_a_function_of_its_seed(architecture: str) -> None:
    tokenizer = tokenizer_from_texts(["What is 1 + 1?"], 300)
    first, same, other = (random_model(architecture, tokenizer, seed) for seed in (1, 1, 2))
    assert first.config.model_type == architecture
    assert first.num_parameters() < 300_000
    ids = torch.arange(5)[None]
    with torch.no_grad():
        assert torch.equal(first(ids).logits, same(ids).logits)
        assert not torch.equal(first(ids).logits, other(ids).logits)
