"""What a dry run refuses about a model, in a process with torch."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from asyncrl.cli.launch import architecture
from asyncrl.config.run_file import decode
from asyncrl.config.sections import Config
from asyncrl.errors import ConfigError


def a_run(model: Path, max_tokens: int = 64) -> Config:
    data = {"train": "t", "max_prompt_tokens": 64}
    return decode({"model": {"path": str(model)}, "data": data, "sampling": {"max_tokens": max_tokens}})


def changed(toy: Path, tmp_path: Path, **settings: object) -> Path:
    model = shutil.copytree(toy / "model", tmp_path / "model")
    said = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(said | settings))
    return model


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model_type": "unheard"}, "has no model of model_type 'unheard'"),
        ({"intermediate_size": 8}, "has shape [32, 64], but by config.json it must have [32, 8]"),
        (
            {"max_position_embeddings": 100},
            "a slot holds 128 tokens (prompt and completion), but the model knows 100",
        ),
    ],
    ids=["unknown type", "another shape", "too few positions"],
)
def test_a_model_that_cannot_be_computed_is_one_sentence(
    toy: Path, tmp_path: Path, settings: dict[str, object], sentence: str
) -> None:
    """Here in this process, which has torch: that a sentence comes out of the other is told in `test_own_process`."""
    with pytest.raises(ConfigError) as refused:
        architecture._check(a_run(changed(toy, tmp_path, **settings)))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_overrides_count_for_the_positions_of_a_slot(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["", ""])
    model = changed(toy, tmp_path, max_position_embeddings=100)
    architecture._check(with_overrides(a_run(model), max_position_embeddings=128))
    with pytest.raises(ConfigError, match=r"but the model knows 101 positions"):
        architecture._check(with_overrides(a_run(model), max_position_embeddings=101))
    with pytest.raises(
        ConfigError, match=r"model\.overrides\.position_embeddings: .* has no such setting; did you mean"
    ):
        architecture._check(with_overrides(a_run(model), position_embeddings=128))


def with_overrides(config: Config, **overrides: object) -> Config:
    return replace(config, model=replace(config.model, overrides=overrides))


@pytest.mark.slow
def test_a_run_that_does_not_fit_into_the_devices_is_one_sentence(toy: Path) -> None:
    raw = {"model": {"path": str(toy / "model")}, "data": {"train": "t"}, "trainer": {"device": "cuda"}}
    with pytest.raises(ConfigError, match=r"the trainer needs .* on each cuda device \(step\), but a device has 1 MiB"):
        architecture.check_architecture(decode(raw), "1MiB")


def test_a_model_that_can_be_computed_is_accepted_and_this_process_imports_no_torch_for_it(
    monkeypatch: pytest.MonkeyPatch, toy: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    architecture.check_architecture(a_run(toy / "model"))
