"""Small files of a model directory: those of prompts, the tokenizer, experts, and two copies compared."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncrl.config.model.tokenizer import (
    check_tokenizer,
    describe,
    difference,
    has_vocabulary,
    num_experts,
    prompt_files,
)
from asyncrl.errors import ConfigError
from tests.config.model.directories import write_model, write_tokenizer

TAKEN = [
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates/tools.jinja",
    "preprocessor_config.json",
]
LEFT = ["config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "modeling.py"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in (*TAKEN, *LEFT):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_weights_configuration_and_code_are_not_among_them(model: Path) -> None:
    assert {str(path.relative_to(model)) for path in prompt_files(model)} == set(TAKEN)


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model", "vocab.txt", "tekken.json", "qwen.tiktoken"])
def test_a_tokenizer_has_one_of_several_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer_config.json").touch()
    assert not has_vocabulary(tmp_path)
    (tmp_path / name).touch()
    assert has_vocabulary(tmp_path)


def test_a_folder_or_a_broken_link_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    (tmp_path / "vocab.json").symlink_to("gone")
    assert not has_vocabulary(tmp_path)
    assert not list(prompt_files(tmp_path))


def refusal(model: Path, vocab_size: int | None = None) -> str:
    with pytest.raises(ConfigError) as refused:
        check_tokenizer(model, "model.path", vocab_size)
    return str(refused.value).replace(str(model), "MODEL")


def test_a_model_without_a_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        "model.path=MODEL has no tokenizer: expected tokenizer.json or another of a tokenizer's files beside "
        "config.json; copy them from the model's origin"
    )


@pytest.mark.parametrize("added", [0, 3])
def test_a_tokenizer_of_another_model_is_one_sentence(tmp_path: Path, added: int) -> None:
    write_tokenizer(tmp_path, 40, added)
    assert refusal(tmp_path, 22) == (
        "model.path=MODEL: the tokenizer has token ids up to 39, but the model knows 0 to 21; use the "
        "model's own tokenizer"
    )


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("ends", [64, [3, 64]])
def test_an_end_token_that_the_model_does_not_have_is_one_sentence(
    tmp_path: Path, name: str, ends: int | list[int]
) -> None:
    write_tokenizer(tmp_path, 40)
    for content in ({"eos_token_id": ends}, {"text_config": {"eos_token_id": ends}}):
        (tmp_path / name).write_bytes(msgspec.json.encode(content))
        assert refusal(tmp_path, 64) == (
            f"model.path=MODEL: {name} names the end token 64, but the model knows 0 to 63; repair eos_token_id"
        )
    for none in (-1, [-1], None, [63], "text"):
        (tmp_path / name).write_bytes(msgspec.json.encode({"eos_token_id": none}))
        check_tokenizer(tmp_path, "model.path", 64)


@pytest.mark.parametrize("num_rows", [40, 64])
def test_a_vocabulary_may_be_padded_and_tokens_may_be_added_that_the_model_lacks(tmp_path: Path, num_rows: int) -> None:
    write_tokenizer(tmp_path, 40, 3)
    check_tokenizer(tmp_path, "model.path", num_rows)


def test_a_vocabulary_may_be_a_list_with_scores(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(
        msgspec.json.encode({"model": {"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0]]}})
    )
    check_tokenizer(tmp_path, "model.path", 2)
    assert "up to 1" in refusal(tmp_path, 1)


@pytest.mark.parametrize("name", ["spiece.model", "vocab.txt", "qwen.tiktoken"])
def test_other_files_of_a_tokenizer_are_left_to_transformers(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"any")
    check_tokenizer(tmp_path, "model.path", 2)


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    assert refusal(tmp_path).startswith("MODEL/tokenizer.json is not a JSON object: ")


@pytest.mark.parametrize(
    ("config", "number"),
    [
        ({"num_experts": 128}, 128),
        ({"num_local_experts": 8}, 8),
        ({"text_config": {"n_routed_experts": 64}}, 64),
        ({"text_config": {"hidden_size": 8}, "num_experts": None}, 0),
        ({"num_experts": 1}, 0),
        ({"hidden_size": 8}, 0),
    ],
)
def test_each_family_says_it_by_its_own_name(tmp_path: Path, config: dict[str, Any], number: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert num_experts(tmp_path) == number


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        num_experts(tmp_path)


WEIGHTS = "model.safetensors"


def test_a_copy_is_the_same_and_other_files_in_it_do_not_matter(tmp_path: Path) -> None:
    expected = describe(write_model(tmp_path / "a"))
    copy = write_model(tmp_path / "b")
    (copy / "README.md").write_text("mine")
    (copy / "notes.json").write_text("{}")
    assert {file.name for file in expected} >= {"config.json", "tokenizer.json", WEIGHTS}
    assert difference(copy, expected) == ""


def test_the_values_of_the_weights_are_not_compared(tmp_path: Path) -> None:
    expected = describe(write_model(tmp_path / "a"))
    weights = write_model(tmp_path / "b") / WEIGHTS
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert difference(tmp_path / "b", expected) == ""


def _template(model: Path) -> Path:
    (model / "additional_chat_templates").mkdir()
    return model / "additional_chat_templates" / "tools.jinja"


def _rename_a_tensor(model: Path) -> None:
    raw = (model / WEIGHTS).read_bytes()
    (model / WEIGHTS).write_bytes(raw.replace(b"embed_tokens", b"embed_tokenz"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: (model / "config.json").unlink(), "config.json is missing"),
        (lambda model: (model / "tokenizer.json").write_text("{}"), "tokenizer.json has 2 bytes, expected "),
        (_rename_a_tensor, "the header of model.safetensors has the digest "),
        (lambda model: (model / "other.safetensors").write_bytes(bytes(8)), "other.safetensors is too many"),
        (lambda model: (model / "added_tokens.json").write_text("{}"), "added_tokens.json is too many"),
        (lambda model: (model / "more.tiktoken").write_text(""), "more.tiktoken is too many"),
        (lambda model: _template(model).write_text(""), "additional_chat_templates/tools.jinja is too many"),
    ],
)
def test_the_first_difference_is_named(tmp_path: Path, change: Callable[[Path], object], said: str) -> None:
    expected = describe(write_model(tmp_path / "a"))
    copy = write_model(tmp_path / "b")
    change(copy)
    assert difference(copy, expected).startswith(said)


def test_every_file_of_which_prompts_are_made_is_described(model: Path) -> None:
    assert {file.name for file in describe(model)} >= set(TAKEN)


def test_a_directory_that_does_not_exist_has_no_files(tmp_path: Path) -> None:
    assert describe(tmp_path / "nowhere") == []
