"""Model and data are found near the working directory; several, or none, are an error that names the option."""

from pathlib import Path

import pytest

from asyncrl.cli.start import findings
from asyncrl.errors import ConfigError
from tests.config.model.directories import write_model

ROW = '{"prompt": "4 + 4", "answer": "8"}\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(*paths: str, text: str = ROW) -> None:
    for path in map(Path, paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_only_model_is_found_and_measured() -> None:
    write_model(Path("models/base"))
    found = findings.find_model(None)
    assert found.path == "models/base"
    assert found.num_parameters > 0


def test_several_models_or_none_are_asked_for() -> None:
    with pytest.raises(ConfigError, match="there is not a model in this folder: name one with --model DIR"):
        findings.find_model(None)
    for name in "ab":
        write_model(Path("models", name))
    with pytest.raises(ConfigError, match="a model could be any of models/a, models/b: name one with --model DIR"):
        findings.find_model(None)


def test_the_only_training_file_is_found_and_the_held_out_one_beside_it() -> None:
    write("data/train.jsonl", "data/my_test.jsonl", ".hidden/other.jsonl", "runs/a/samples.jsonl")
    found = findings.find_data(None, {}, None)
    assert (found.path, found.num_rows, found.is_counted) == ("data/train.jsonl", 1, False)
    assert findings.find_held_out(found.path) == "data/my_test.jsonl"


def test_without_one_held_out_file_there_is_none() -> None:
    write("train.jsonl", "latest.jsonl")
    assert findings.find_held_out("train.jsonl") == ""
    write("val.jsonl", "test.jsonl")
    assert findings.find_held_out("train.jsonl") == ""


def test_prompts_are_counted_in_tokens_if_the_tokenizer_can_be_loaded() -> None:
    write("train.jsonl", text=ROW + "{}\n")
    found = findings.find_data("train.jsonl", {"prompt": "prompt", "answer": "answer"}, lambda prompt: 17)
    assert (found.longest_prompt, found.is_counted, found.num_bad) == (17, True, 1)
    assert findings.find_data("train.jsonl", {"prompt": "prompt", "answer": "answer"}, None).longest_prompt == 3


def test_the_machine_is_its_drivers_devices_and_its_cores() -> None:
    devices, cores = findings.find_machine({"CUDA_VISIBLE_DEVICES": "3,5"})
    assert devices.ids == ("3", "5")
    assert cores >= 1
