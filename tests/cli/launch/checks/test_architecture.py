"""What a dry run refuses about a model, in a process with torch."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from asyncrl.cli.launch.checks import architecture
from asyncrl.config.config import Config
from asyncrl.config.model.adapter import adapter_config
from asyncrl.config.run_file import decode
from asyncrl.config.sections.rollout import Vllm
from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError
from tests.config.model.directories import Shapes, write_safetensors


def a_run(model: Path, max_tokens: int = 64) -> Config:
    data = {"train": "t", "max_prompt_tokens": 64}
    return decode({"model": {"path": str(model)}, "data": data, "sampling": {"max_tokens": max_tokens}})


def changed(toy: Path, tmp_path: Path, **settings: object) -> Path:
    model = shutil.copytree(toy / "model", tmp_path / "model")
    said = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(said | settings))
    return model


@pytest.mark.parametrize(
    ("settings", "line", "sentence"),
    [
        ({"model_type": "unheard"}, "architecture", "has no model of model_type 'unheard'"),
        ({"intermediate_size": 8}, "architecture", "has shape [32, 64], but by config.json it must have [32, 8]"),
        (
            {"max_position_embeddings": 100},
            "positions",
            "a slot holds 128 tokens (prompt and completion), but the model knows 100",
        ),
    ],
    ids=["unknown type", "another shape", "too few positions"],
)
def test_a_model_that_cannot_be_computed_is_one_sentence(
    toy: Path, tmp_path: Path, settings: dict[str, object], line: str, sentence: str
) -> None:
    """Here in this process, which has torch: that lines come out of the other is told in `test_own_process`."""
    problems = {
        name: problem for name, problem in examined(a_run(changed(toy, tmp_path, **settings))).items() if problem
    }
    assert list(problems) == [line]
    assert sentence in problems[line]
    assert "\n" not in problems[line]


def examined(config: Config) -> dict[str, str]:
    """The problem of each line, empty if there is none."""
    return {line.name: line.problem for line in architecture._lines(config, "")}


def test_an_adapter_of_other_layers_is_refused_before_anything_starts(toy: Path, tmp_path: Path) -> None:
    lora = Lora(rank=2, path=str(tmp_path))
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter_config(lora, ["q_proj"], "base")))
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    shapes: Shapes = {f"{layer}.lora_A.weight": (2, 32), f"{layer}.lora_B.weight": (32, 2)}
    write_safetensors(tmp_path / "adapter_model.safetensors", shapes)

    config = a_run(toy / "model")
    problem = examined(replace(config, trainer=replace(config.trainer, lora=lora)))["architecture"]
    assert problem.startswith(f"trainer.lora.path={tmp_path} lacks base_model.model.model.layers.0.mlp.down_proj")


def test_what_an_unknown_architecture_hides_is_not_checked(toy: Path, tmp_path: Path) -> None:
    lines = list(architecture._lines(a_run(changed(toy, tmp_path, model_type="unheard")), ""))
    assert [(line.name, line.state) for line in lines] == [
        ("architecture", "bad"),
        ("positions", "absent"),
        ("memory", "absent"),
    ]


def test_positions_are_those_of_vllm_too(toy: Path, tmp_path: Path) -> None:
    config = a_run(changed(toy, tmp_path, max_position_embeddings=130))
    assert examined(config)["positions"] == ""
    longer = replace(config, rollout=replace(config.rollout, engine="vllm", vllm=Vllm(max_model_len=131)))
    assert "a slot holds 131 tokens" in examined(longer)["positions"]


def test_overrides_count_for_the_positions_of_a_slot(toy: Path, tmp_path: Path) -> None:
    config = a_run(changed(toy, tmp_path, max_position_embeddings=100))
    assert examined(with_overrides(config, max_position_embeddings=128))["positions"] == ""
    assert "but the model knows 101" in examined(with_overrides(config, max_position_embeddings=101))["positions"]
    assert (
        "has no such setting; did you mean" in examined(with_overrides(config, position_embeddings=1))["architecture"]
    )


def with_overrides(config: Config, **overrides: object) -> Config:
    return replace(config, model=replace(config.model, overrides=overrides))


@pytest.mark.slow("imports torch in a process of its own")
def test_a_run_that_does_not_fit_into_the_devices_is_one_sentence(toy: Path) -> None:
    raw = {"model": {"path": str(toy / "model")}, "data": {"train": "t"}, "trainer": {"device": "cuda"}}
    with pytest.raises(ConfigError, match=r"the trainer needs .* on each cuda device \(step\), but a device has 1 MiB"):
        architecture.check_architecture(decode(raw), "1MiB")


@pytest.mark.slow("imports torch in processes of its own")
def test_a_model_that_can_be_computed_is_accepted_and_this_process_imports_no_torch_for_it(
    monkeypatch: pytest.MonkeyPatch, toy: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = {line.name: line.what for line in architecture.check_architecture(a_run(toy / "model"))}
    assert found["architecture"] == "a model of type 'qwen3', which the trainer can compute"
    assert found["positions"].startswith("128 of prompt and completion, of ")
    assert found["memory"].startswith("fits: ")
