from pathlib import Path

import msgspec
import pytest

from asyncrl.config.model.tokenizer import check_tokenizer, num_token_ids
from asyncrl.errors import ConfigError
from tests.config.model.directories import write_tokenizer


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
        f"model.path=MODEL: the tokenizer has token ids up to {39 + added}, but the model knows 0 to 21; use the "
        f"model's own tokenizer"
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


def test_a_vocabulary_may_be_padded(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 40)
    check_tokenizer(tmp_path, "model.path", 64)


def test_the_ids_of_a_model_end_with_its_tokenizer_or_with_an_end_token_beyond_it(tmp_path: Path) -> None:
    assert num_token_ids(tmp_path, 64) == 64, "without a tokenizer.json nothing is known"
    write_tokenizer(tmp_path, 40, 3)
    assert num_token_ids(tmp_path, 64) == 43
    assert num_token_ids(tmp_path, 32) == 32
    (tmp_path / "generation_config.json").write_bytes(msgspec.json.encode({"eos_token_id": [3, 50]}))
    assert num_token_ids(tmp_path, 64) == 51


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
    assert refusal(tmp_path).startswith("MODEL/tokenizer.json is not a tokenizer: ")
