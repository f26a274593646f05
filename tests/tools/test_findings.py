"""Model and data are found near the working directory; several, or none, are an error that names the option."""

from pathlib import Path

import pytest

from asyncrl.errors import ConfigError, DataError
from asyncrl.messages.trajectory import Prompt
from asyncrl.tools import init
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
    found = init.find_model(None)
    assert found.path == "models/base"
    assert found.num_parameters > 0


def test_several_models_or_none_are_asked_for() -> None:
    with pytest.raises(ConfigError, match="no model was found in this folder: name one with --model DIR"):
        init.find_model(None)
    for name in "ab":
        write_model(Path("models", name))
    with pytest.raises(ConfigError, match="the model could be any of models/a, models/b: name one with --model DIR"):
        init.find_model(None)


def test_the_only_training_file_is_found_and_the_held_out_one_beside_it() -> None:
    write("data/train.jsonl", "data/my_test.jsonl", ".hidden/other.jsonl", "runs/a/samples.jsonl")
    found = init.find_data(None, {}, None)
    assert (found.path, found.num_rows, found.is_counted) == ("data/train.jsonl", 1, False)
    assert init.find_held_out(found.path) == ["data/my_test.jsonl"]


def test_the_held_out_file_has_the_format_of_the_training_file_if_there_is_one() -> None:
    write("train.jsonl", "latest.jsonl")
    assert init.find_held_out("train.jsonl") == []
    write("test.parquet")
    assert init.find_held_out("train.jsonl") == ["test.parquet"]
    write("val.jsonl")
    assert init.find_held_out("train.jsonl") == ["val.jsonl"]
    write("test.jsonl")
    assert init.find_held_out("train.jsonl") == ["test.jsonl", "val.jsonl"]
    assert init.find_held_out("test.jsonl") == ["val.jsonl"]


def test_texts_become_chats_if_the_model_has_a_chat_template() -> None:
    write("texts.jsonl")
    write("chats.jsonl", text='{"prompt": [{"role": "user", "content": "4 + 4"}], "answer": "8"}\n')
    seen: list[bool] = []

    def count(prompt: Prompt) -> int:
        seen.append(bool(prompt.chat))
        return 17

    assert init.find_data("texts.jsonl", {}, lambda: count, has_template=True).as_chat
    assert not init.find_data("chats.jsonl", {}, lambda: count, has_template=True).as_chat
    assert not init.find_data("texts.jsonl", {}, lambda: count).as_chat
    assert seen == [True, True, False]


def test_prompts_are_counted_in_tokens_if_the_tokenizer_can_be_loaded() -> None:
    write("train.jsonl", text=ROW + "{}\n")
    found = init.find_data("train.jsonl", {"prompt": "prompt", "answer": "answer"}, lambda: lambda prompt: 17)
    assert (found.longest_prompt, found.is_counted, found.num_bad) == (17, True, 1)
    assert init.find_data("train.jsonl", {"prompt": "prompt", "answer": "answer"}, None).longest_prompt == 3


def test_columns_that_cannot_be_guessed_are_asked_for_before_a_tokenizer_is_loaded() -> None:
    write("train.jsonl", text='{"text": 1}\n')
    with pytest.raises(DataError, match="a prompt or a reference answer: it has text; name it with --prompt-column"):
        init.find_data("train.jsonl", {}, lambda: pytest.fail("loaded"))


def test_the_machine_is_its_drivers_devices_and_its_cores() -> None:
    devices, cores = init.find_machine({"CUDA_VISIBLE_DEVICES": "3,5"})
    assert devices.ids == ("3", "5")
    assert cores >= 1
