from pathlib import Path

import msgspec
import pytest

from asyncrl.data.chat_template import check_template, read_special_tokens, read_template, text_advice
from asyncrl.errors import ConfigError

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %}<think>{% endif %}"


def write_settings(model: Path, **settings: object) -> None:
    (model / "tokenizer_config.json").write_bytes(msgspec.json.encode(settings))


def test_a_template_has_a_file_of_its_own_or_is_among_the_settings(tmp_path: Path) -> None:
    assert read_template(tmp_path) == ""
    write_settings(tmp_path, model_max_length=512)
    assert read_template(tmp_path) == ""
    write_settings(tmp_path, chat_template="from the settings")
    assert read_template(tmp_path) == "from the settings"
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    assert read_template(tmp_path) == TEMPLATE


def test_of_several_templates_the_default_is_used(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "chats"}]
    write_settings(tmp_path, chat_template=several)
    assert read_template(tmp_path) == "chats"


def test_settings_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config.json is not a JSON object"):
        read_template(tmp_path)


def test_an_argument_that_the_template_reads_is_fine() -> None:
    check_template(TEMPLATE, ["enable_thinking"], has_chats=True)
    check_template("", [], has_chats=False)


@pytest.mark.parametrize(
    ("template", "arguments", "has_chats", "reason"),
    [
        ("", [], True, "data has prompts that are chats, but the model has no chat template"),
        ("", ["thinking"], False, r"kwargs\.thinking is set, but the model has no chat template"),
        (TEMPLATE, ["thinking"], True, r"kwargs\.thinking is set, but the model's chat template never reads it"),
    ],
)
def test_what_a_template_would_not_do_is_refused(
    template: str, arguments: list[str], has_chats: bool, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_template(template, arguments, has_chats=has_chats)


def test_texts_that_a_template_does_not_reach_are_told_with_the_setting() -> None:
    (sentence,) = text_advice(TEMPLATE, has_texts=True)
    assert "set data.as_chat = true" in sentence
    assert text_advice(TEMPLATE, has_texts=False) == text_advice("", has_texts=True) == []


def test_special_tokens_are_texts_or_have_one(tmp_path: Path) -> None:
    assert read_special_tokens(tmp_path) == {}
    write_settings(tmp_path, bos_token="<s>", eos_token={"content": "</s>"}, pad_token=None, add_bos_token=True)
    assert read_special_tokens(tmp_path) == {"bos_token": "<s>", "eos_token": "</s>"}
