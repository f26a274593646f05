"""Messages in the form that a chat template takes."""

import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from asyncrl.engine import PolicyTurn
from asyncrl.errors import EngineError
from asyncrl.rollout.engines.chat_template import ChatTemplate, content_of, without_reminders
from asyncrl.rollout.engines.turn_boundaries import make_boundary
from tests.rollout.engines.chat_families import FAMILIES, tokenizer


def called(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}]


@pytest.mark.parametrize("arguments", [{"a": 1}, '{"a": 1}'], ids=["object", "text"])
@pytest.mark.parametrize(
    ("family", "shown"),
    [
        ("qwen2_5", '"arguments": {"a": 1}}'),
        ("qwen3_5", "<parameter=a>\n1\n</parameter>"),
        ("glm4_5", "<arg_key>a</arg_key>\n<arg_value>1</arg_value>"),
        ("deepseek_v3", '```json\n{"a": 1}\n```'),
        ("deepseek_v3_1", 'add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'),
        ("kimi_k2", '<|tool_call_begin|>1<|tool_call_argument_begin|>{"a": 1}'),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1}'),
        ("gpt_oss", ' to=functions.add<|channel|>commentary json<|message|>{"a": 1}'),
        ("gemma4", "<|tool_call>call:add{a:1}"),
    ],
)
def test_arguments_have_the_form_that_the_template_takes(family: str, shown: str, arguments: Any) -> None:
    assert shown in ChatTemplate(tokenizer(family)).render(called(arguments), answers=False)


def test_arguments_that_are_no_object_are_refused() -> None:
    with pytest.raises(EngineError, match="the arguments of a call of add are no JSON object"):
        ChatTemplate(tokenizer("qwen3")).render(called("[1]"))


def test_a_message_without_calls_has_no_list_of_them() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": []},
    ]
    assert "b<｜end▁of▁sentence｜>" in ChatTemplate(tokenizer("deepseek_v3")).render(messages)


def told(*turns: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


def test_a_reminder_is_said_by_the_user_where_a_template_takes_one_system_message_alone() -> None:
    assert without_reminders(told(("system", "s"), ("system", "t"), ("user", "a"))) == told(
        ("system", "s\n\nt"), ("user", "a")
    )
    late = told(("user", "a"), ("assistant", "b"), ("system", "s"), ("user", "c"), ("user", "d"), ("user", "e"))
    assert without_reminders(late) == told(("user", "a"), ("assistant", "b"), ("user", "s\n\nc\n\nd\n\ne"))
    assert without_reminders(told(("user", "a"), ("system", "s"))) == told(("user", "a\n\ns"))
    assert without_reminders(told(("user", "a"), ("user", "b"))) == told(("user", "a"), ("user", "b"))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_template_shows_a_reminder_where_it_stands(family: str) -> None:
    messages = told(("user", "a"), ("assistant", "said"), ("system", "reminded"), ("user", "asked"))
    shown = ChatTemplate(tokenizer(family)).render(messages)
    assert 0 <= shown.find("said") < shown.find("reminded") < shown.find("asked")
    boundary = make_boundary(tokenizer(family))
    context = boundary.after(messages[2:], tokenizer(family)("said", add_special_tokens=False).input_ids)
    assert "reminded" in tokenizer(family).decode(context)


@pytest.mark.parametrize(
    ("content", "text"),
    [("a", "a"), (None, ""), ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab")],
)
def test_content_is_one_text(content: object, text: str) -> None:
    assert content_of({"role": "user", "content": content}) == text


def test_content_with_a_picture_is_a_list_that_tells_templates_where_it_stands() -> None:
    picture = {"type": "image", "digest": "9f", "width": 8, "height": 8}
    content = [{"type": "text", "text": "a"}, picture]
    assert content_of({"role": "user", "content": content}) == [content[0], {"type": "image"}]
    told = without_reminders([{"role": "user", "content": content}, {"role": "system", "content": "hurry"}])
    assert told == [{"role": "user", "content": [content[0], {"type": "image"}, *map(text_part, ("\n\n", "hurry"))]}]


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize("content", [5, {"a": 1}, [{"type": "image_url"}], ["a"]])
def test_other_content_is_refused_for_good(content: object) -> None:
    with pytest.raises(EngineError, match="expected a text or a list of texts and pictures") as caught:
        content_of({"role": "user", "content": content})
    assert not caught.value.retryable


def test_the_generation_prompt_begins_a_turn() -> None:
    assert ChatTemplate(tokenizer("qwen3")).generation_prompt() == "<|im_start|>assistant\n"
    assert ChatTemplate(tokenizer("qwen3_5")).generation_prompt().endswith("<think>\n\n</think>\n\n")


def test_arguments_of_the_template_and_tools_of_a_chat_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer("qwen3"), "chat_template", "{{ messages[0].content }} {{ mood }} {{ tools }}")
    template = ChatTemplate(tokenizer("qwen3"), {"mood": "good"}, [{"name": "run"}])
    assert template.render([{"role": "user", "content": "a"}]) == "a good [{'name': 'run'}]"
    assert "chat's" in template.render([{"role": "user", "content": "a"}], tools=[{"name": "chat's"}])


# ── test response template ────────────────────────────────────────────────────────────────────
# Calls as a tokenizer's own response template finds them.

TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "content": {"close": "<|im_end|>"},
        "tool_calls": {"open": "<run>", "close": "</run>", "repeats": True, "content": "json"},
    },
}


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> PreTrainedTokenizerBase:
    made = tokenizer("qwen2_5")
    monkeypatch.setattr(made, "response_template", TEMPLATE)
    return made


def said(words: PreTrainedTokenizerBase, written: str) -> PolicyTurn:
    return make_boundary(words).said(words(written, add_special_tokens=False).input_ids, "stop")


def test_auto_takes_the_response_template(words: PreTrainedTokenizerBase) -> None:
    turn = said(words, 'Look.<run>{"name": "add", "arguments": {"a": 1}}</run><|im_end|>')
    assert (turn.content, turn.text) == ("Look.", 'Look.<run>{"name": "add", "arguments": {"a": 1}}</run>')
    assert [(call.name, call.arguments) for call in turn.tool_calls] == [("add", {"a": 1})]


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("<run>{</run>", "the turn cannot be read: "),
        ("<run>[1]</run>", "is a list, expected a JSON object"),
        ('<run>{"name": "add"}</run>', 'of add has no "arguments"'),
        ('<run>{"name": "add", "args": {}}</run>', "of add has the key 'args'"),
        ('<run>{"name": "add", "arguments": 5}</run>', 'of add has a number as "arguments"'),
        ('<run>{"name": "add", "arguments": {"a": 99999999999999999999999}}</run>', "cannot be sent on"),
    ],
)
def test_what_cannot_be_read_is_a_problem(words: PreTrainedTokenizerBase, written: str, problem: str) -> None:
    (call,) = said(words, written).tool_calls
    assert problem in call.problem


def test_a_text_is_another_value_only_where_the_schema_forbids_text(words: PreTrainedTokenizerBase) -> None:
    properties = {"a": {"type": ["integer", "string"]}, "b": {"type": "integer"}, "c": {"$ref": "#/$defs/text"}}
    parameters = {"type": "object", "properties": properties, "$defs": {"text": {"type": "string"}}}
    tools = json.dumps([{"type": "function", "function": {"name": "add", "parameters": parameters}}])
    arguments = {"a": "1", "b": "1", "c": "true"}
    called = f'<run>{{"type": "function", "function": {json.dumps({"name": "add", "arguments": arguments})}}}</run>'
    written = words(called, add_special_tokens=False).input_ids
    (call,) = make_boundary(words, tools=tools).said(written, "stop").tool_calls
    assert call.arguments == {"a": "1", "b": 1, "c": "true"}


def test_too_many_calls_are_a_problem(words: PreTrainedTokenizerBase) -> None:
    *calls, last = said(words, '<run>{"name": "add", "arguments": {}}</run>' * 70).tool_calls
    assert (len(calls), last.problem) == (64, "the turn has more than 64 calls")
