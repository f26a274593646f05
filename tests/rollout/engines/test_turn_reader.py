"""Turns as the environment gets them."""

import pytest

from asyncrl.engine import PolicyTurn
from asyncrl.rollout.engines.turn_boundaries import make_boundary
from tests.rollout.engines.chat_families import tokenizer

CALL = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'


def said(family: str, written: str) -> PolicyTurn:
    return make_boundary(tokenizer(family)).said(tokenizer(family)(written, add_special_tokens=False).input_ids, "stop")


def test_text_is_all_and_content_is_what_is_neither_thought_nor_call() -> None:
    turn = said("qwen3", f"<think>\nhm\n</think>\n\nLook.\n{CALL}<|im_end|>")
    assert turn.text == f"<think>\nhm\n</think>\n\nLook.\n{CALL}"
    assert turn.content == "Look."
    assert [call.name for call in turn.tool_calls] == ["add"]


@pytest.mark.parametrize("written", [f"<think>{CALL}</think>no", f"<think>{CALL}"], ids=["closed", "cut"])
def test_a_call_in_a_thought_is_none(written: str) -> None:
    assert said("qwen3", written).tool_calls == []


def test_a_thought_that_the_prompt_opened_is_no_content(monkeypatch: pytest.MonkeyPatch) -> None:
    thinking = tokenizer("qwen3").chat_template.replace("assistant\\n' if add", "assistant\\n<think>\\n' if add")
    monkeypatch.setattr(tokenizer("qwen3"), "chat_template", thinking)
    assert said("qwen3", CALL).tool_calls == []
    assert said("qwen3", f"hm</think>ok{CALL}").content == "ok"


def test_marks_of_calls_may_be_special_tokens() -> None:
    turn = said("llama3", '<|python_tag|>{"name": "add", "parameters": {"a": 1}}<|eot_id|>')
    assert [(call.name, call.arguments) for call in turn.tool_calls] == [("add", {"a": 1})]
    assert turn.content == ""
