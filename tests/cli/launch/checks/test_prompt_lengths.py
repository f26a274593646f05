"""Prompts with too many tokens are refused before a run starts, as engines would count them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from asyncrl.cli.launch.checks import prompt_lengths
from asyncrl.cli.launch.checks.prompt_lengths import check_lengths, token_count
from asyncrl.config.run_file import decode
from asyncrl.data.prompts import train_stream
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import Prompt
from asyncrl.rollout.engines.text import encode, load_tokenizer

TEMPLATE = (
    "{{ bos_token }} {% for m in messages %}{{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}<policy>{% endif %}"
    "{% if thinks %} <think>{% endif %}"
)
CHAT = [{"role": "user", "content": "one two"}]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    words = Tokenizer(models.WordLevel({"?": 0, "<policy>": 1, "<think>": 2, "<s>": 3}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.enable_truncation(4)
    saved = PreTrainedTokenizerFast(tokenizer_object=words, chat_template=TEMPLATE, bos_token="<s>")
    saved.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def remarks(model: Path, prompts: list[Any], **data: Any) -> list[str]:
    said: list[str] = []
    path = model.parent / "train.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode({"prompt": prompt, "answer": "1"}) for prompt in prompts))
    config = decode({"model": {"path": str(model)}, "data": {"train": str(path), "max_prompt_tokens": 4} | data})
    check_lengths(config, "train", train_stream(config.data, 0), said.append)
    return said


@pytest.mark.parametrize("prompt", [Prompt(text="one two three four five six"), Prompt(chat=CHAT), Prompt(text=" ")])
def test_tokens_are_counted_as_engines_count_them(model: Path, prompt: Prompt) -> None:
    count = token_count(model, {"thinks": True})
    assert count is not None
    assert count(prompt) == len(encode(load_tokenizer(str(model)), prompt, {"thinks": True}))


def test_a_chat_of_four_tokens_fits_and_one_of_five_is_refused_with_the_settings(model: Path) -> None:
    assert remarks(model, ["one two three four", CHAT]) == []
    with pytest.raises(ConfigError) as caught:
        remarks(model, ["one", CHAT], chat_template_kwargs={"thinks": True})
    assert str(caught.value).startswith(
        "data.train: 1 of 2 prompts have more tokens than data.max_prompt_tokens = 4, up to 5: raise it, or leave"
    )
    assert "data.filter_overlong_prompts = true" in str(caught.value)
    assert "data.truncation" in str(caught.value)


def test_prompts_that_are_left_out_are_a_remark_and_those_that_are_cut_are_fine(model: Path) -> None:
    prompts = ["one two three four five", "one"]
    (remark,) = remarks(model, prompts, filter_overlong_prompts=True)
    assert remark.startswith("data.train: about 1 of 2 prompts have more tokens")
    assert remarks(model, prompts, truncation="left") == []


def test_prompts_that_fit_as_engines_count_them_are_not_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lengths, "token_counter", lambda *_: lambda prompt: 4)
    assert remarks(model, ["one two three four five"]) == []


def test_of_a_large_dataset_the_longest_prompts_are_counted(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lengths, "COUNTED", 2)
    with pytest.raises(ConfigError, match=r"1 of 3 prompts .* up to 5"):
        remarks(model, ["one", "1 2 3 4 5", "a_long_word"])
    with pytest.raises(ConfigError, match="at least 2 of 4 prompts"):
        remarks(model, ["1 2 3 4 5", "one", *["1 2 3 4 5"] * 2])
    monkeypatch.setattr(prompt_lengths, "READ", 2)
    with pytest.raises(ConfigError, match="at least 1 of 4 prompts"):
        remarks(model, ["1 2 3 4 5", "one", "two", "three"], shuffle=False)


def test_a_model_without_a_tokenizer_that_can_be_read_is_left_to_other_checks(model: Path) -> None:
    (model / "tokenizer.json").write_text("{}")
    assert remarks(model, ["one two three four five"]) == []
    (model / "tokenizer.json").unlink()
    assert token_count(model, {}) is None
