"""Seams by the settings of a run."""

import json
from typing import Any

import pytest

from asyncrl.config.sections.sampling import ToolParser
from asyncrl.errors import ConfigError
from asyncrl.rollout.engines.seam import ChatSeam
from asyncrl.rollout.engines.seams import make_seam
from asyncrl.rollout.engines.text_seam import TextSeam
from tests.rollout.engines.chat_families import FAMILIES, tokenizer

INTEGER = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = json.dumps([{"type": "function", "function": {"name": "add", "parameters": INTEGER}}])


def said(family: str, written: str, tool_parser: ToolParser = "auto") -> list[tuple[str, dict[str, Any]]]:
    seam = make_seam(tokenizer(family), tools=TOOLS, tool_parser=tool_parser)
    turn = seam.said(tokenizer(family)(written, add_special_tokens=False).input_ids, "stop")
    return [(call.name, call.arguments) for call in turn.tool_calls]


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_read_in_the_form_that_the_template_shows(family: str) -> None:
    value = 5 if FAMILIES[family].form in ("glm", "qwen_xml") else "5"
    assert said(family, FAMILIES[family].call("add", "5")) == [("add", {"a": value})]


def test_another_form_can_be_named() -> None:
    assert said("qwen3", FAMILIES["llama3"].call("add", "5"), "llama_json") == [("add", {"a": "5"})]
    assert said("qwen3", FAMILIES["qwen3"].call("add", "5"), "none") == []


def test_prompts_are_chats_or_plain_text() -> None:
    assert isinstance(make_seam(tokenizer("qwen3")), ChatSeam)
    assert isinstance(make_seam(tokenizer("qwen3"), is_chat=False), TextSeam)


def test_plain_text_has_no_place_for_tools() -> None:
    with pytest.raises(ConfigError, match="prompts of plain text have no place for them"):
        make_seam(tokenizer("qwen3"), is_chat=False, tools=TOOLS)


def test_tools_that_the_template_does_not_show_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    words = tokenizer("qwen3")
    monkeypatch.setattr(words, "chat_template", words.chat_template.replace("tools", "gadgets"))
    with pytest.raises(ConfigError, match="does not show the tool add to the policy"):
        make_seam(words, tools=TOOLS)


def test_tools_without_a_known_form_of_calls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    words = tokenizer("qwen3")
    monkeypatch.setattr(words, "chat_template", words.chat_template.replace("tool_call>", "called>"))
    with pytest.raises(ConfigError, match=r"name it in environment\.tool_parser: hermes, "):
        make_seam(words, tools=TOOLS)
    make_seam(words, tools=TOOLS, tool_parser="none")


def test_a_response_template_must_be_there_if_it_is_named() -> None:
    with pytest.raises(ConfigError, match="but the tokenizer has none"):
        make_seam(tokenizer("qwen3"), tool_parser="response_template")


def test_a_chat_needs_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer("qwen3"), "chat_template", None)
    with pytest.raises(ConfigError, match="the tokenizer has no chat template"):
        make_seam(tokenizer("qwen3"))
