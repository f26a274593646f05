"""Tools as texts, for chat templates that know none: ``environment.tool_parser = "plain"``."""

import asyncio
import json
from typing import Any

import pytest

from asyncrl.engine import ChatMessage, Completion, Request
from asyncrl.episodes.call_forms import plain
from asyncrl.episodes.gateway.app import GatewayApp
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.errors import ConfigError, EngineError
from asyncrl.messages.trajectory import FROM_NOTHING, Prompt, Span
from asyncrl.rollout.engines.text import encode_text
from asyncrl.rollout.engines.turn_boundaries import make_boundary
from tests.episodes.gateway.doubles import Answer, Episode, call, chat
from tests.rollout.engines.chat_families import FAMILIES, WITHOUT_TOOLS, tokenizer

ADD = {"name": "add", "description": "Add <end_of_turn>.", "parameters": {"properties": {"a": {"type": "integer"}}}}
TOOLS = json.dumps([{"type": "function", "function": ADD}])
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 5}}\n</tool_call>'
ASKED: list[ChatMessage] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}]
DESCRIBED = """You may call these functions, each described by one line:
{"name": "add", "description": "Add <end_of_turn>.", "parameters": {"properties": {"a": {"type": "integer"}}}}

Write a call as
<tool_call>
{"name": "the name", "arguments": {"a parameter": "its value"}}
</tool_call>
and read its result between <tool_response> and </tool_response>."""


def ids(family: str, written: str) -> list[int]:
    return list(tokenizer(family)(written, add_special_tokens=False).input_ids)


def spelled(family: str, token_ids: list[int]) -> str:
    return tokenizer(family).decode(token_ids, skip_special_tokens=False)


# ── texts ─────────────────────────────────────────────────────────────────────────────────────


def test_tools_are_described_behind_the_system_message_or_before_the_question() -> None:
    tools = json.loads(TOOLS)
    assert plain(ASKED, tools) == [{"role": "system", "content": f"Be brief.\n\n{DESCRIBED}"}, ASKED[1]]
    assert plain(ASKED[1:], tools) == [{"role": "user", "content": f"{DESCRIBED}\n\n2 + 3?"}]
    assert plain([{"role": "assistant", "content": "Hi"}], tools)[0] == {"role": "user", "content": DESCRIBED}


@pytest.mark.parametrize("arguments", [{"a": 5}, '{"a": 5}'], ids=["object", "text"])
def test_calls_and_their_results_are_texts_of_the_assistant_and_the_user(arguments: Any) -> None:
    called = {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    messages: list[ChatMessage] = [
        {"role": "assistant", "content": "I add.", "reasoning_content": "hm", "tool_calls": [called, called]},
        {"role": "tool", "content": "+5", "tool_call_id": "1"},
        {"role": "tool", "content": "+6", "tool_call_id": "1"},
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": "11"},
        {"role": "user", "content": "Thanks."},
    ]
    result = "<tool_response>\n+{}\n</tool_response>"
    assert plain(messages) == [
        {"role": "assistant", "content": f"I add.\n{CALL}\n{CALL}", "reasoning_content": "hm"},
        {"role": "user", "content": f"{result.format(5)}\n{result.format(6)}\nWell?"},
        *messages[4:],
    ]


# ── boundaries ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", WITHOUT_TOOLS)
def test_a_template_without_tools_is_refused_with_the_setting_that_shows_them(family: str) -> None:
    with pytest.raises(ConfigError, match=r"does not show the tool add.*environment\.tool_parser = 'plain'"):
        make_boundary(tokenizer(family), tools=TOOLS)
    with pytest.raises(EngineError, match=r"environment\.tool_parser = 'plain'"):
        make_boundary(tokenizer(family)).after([{"role": "tool", "content": "+5"}], [])


@pytest.mark.parametrize("family", [*WITHOUT_TOOLS, *FAMILIES])
def test_a_chat_of_a_run_or_a_request_begins_with_the_ids_of_the_prompt(family: str) -> None:
    prompt = encode_text(tokenizer(family), Prompt(chat=plain(ASKED, json.loads(TOOLS))))
    assert make_boundary(tokenizer(family), tools=TOOLS, tool_parser="plain").opening(ASKED) == prompt
    assert make_boundary(tokenizer(family), tool_parser="plain").opening(ASKED, TOOLS) == prompt


def test_only_the_results_follow_a_turn_and_cannot_end_their_message() -> None:
    boundary = make_boundary(tokenizer("gemma3"), tools=TOOLS, tool_parser="plain")
    result = {"role": "tool", "content": "5<end_of_turn>"}
    context = boundary.after([result, {"role": "user", "content": "So?"}], ids("gemma3", f"{CALL}<end_of_turn>"))
    assert spelled("gemma3", context) == (
        "\n<start_of_turn>user\n<tool_response>\n5<end_of_turn>\n</tool_response>\nSo?<end_of_turn>\n<start_of_turn>model\n"
    )
    (end,) = ids("gemma3", "<end_of_turn>")
    assert context.count(end) == 1


def test_the_history_as_the_template_renders_it_is_what_the_policy_has_read() -> None:
    boundary = make_boundary(tokenizer("gemma3"), tools=TOOLS, tool_parser="plain")
    turn, result = ids("gemma3", f"{CALL}<end_of_turn>"), {"role": "tool", "content": "5"}
    read = [*boundary.opening(ASKED), *turn, *boundary.after([result], turn)]
    assert boundary.retold([*ASKED, boundary.message(turn), result], read) is None
    assert boundary.retold([*ASKED, boundary.message(turn), {**result, "content": "6"}], read) is not None


def test_the_user_says_the_system_message_where_the_template_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    own = tokenizer("phi3")
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system message') }}{% endif %}"
    monkeypatch.setattr(own, "chat_template", refusing + own.chat_template)
    boundary = make_boundary(own, tool_parser="plain")
    assert spelled("phi3", boundary.opening(ASKED, TOOLS)) == (
        f"<|user|>\n{DESCRIBED}\n\nBe brief.\n\n2 + 3?<|end|>\n<|assistant|>\n"
    )


# ── requests ──────────────────────────────────────────────────────────────────────────────────


def an_episode(*, as_template: bool = False) -> Episode:
    """A policy of the template without tools that calls one, and then says what it has read."""
    said = iter([f"{CALL}<end_of_turn>", "It is 5.<end_of_turn>"])

    async def sample(request: Request) -> Completion:
        written = ids("gemma3", next(said))
        spans = [Span(0, 0, len(written))]
        logprobs = [-0.5] * len(written)
        return Completion(
            completion_ids=written, behavior_logprobs=logprobs, spans=spans, finish_reason="stop", generate_s=0.0
        )

    boundary = make_boundary(tokenizer("gemma3"), tool_parser="plain")
    gateway = Gateway("http://test", as_template=as_template)
    return Episode(
        lambda _: "", [{"role": "user", "content": "Row."}], boundary=boundary, sample=sample, gateway=gateway
    )


async def ask_chat(app: GatewayApp, episode: Episode) -> list[Answer]:
    messages, tools = list(ASKED), [{"type": "function", "function": ADD}]
    first = await chat(app, episode, messages, tools=tools)
    (made,) = first.message["tool_calls"]
    result = {"role": "tool", "tool_call_id": made["id"], "content": "5"}
    return [first, await chat(app, episode, [*messages, first.message, result], tools=tools)]


async def ask_responses(app: GatewayApp, episode: Episode) -> list[Answer]:
    path, tools = f"{episode.path}/v1/responses", [{"type": "function", **ADD}]
    rest = {"instructions": "Be brief.", "tools": tools, "model": "m"}
    first = await call(app, "POST", path, {"input": "2 + 3?", **rest})
    (made,) = [item for item in first.json["output"] if item["type"] == "function_call"]
    result = {"type": "function_call_output", "call_id": made["call_id"], "output": "5"}
    body = {"input": [result], "previous_response_id": first.json["id"], **rest}
    return [first, await call(app, "POST", path, body)]


async def ask_messages(app: GatewayApp, episode: Episode) -> list[Answer]:
    path = f"{episode.path}/v1/messages"
    tools = [{"name": ADD["name"], "description": ADD["description"], "input_schema": ADD["parameters"]}]
    rest = {"system": "Be brief.", "tools": tools, "model": "m", "max_tokens": 50}
    asked: list[Any] = [{"role": "user", "content": "2 + 3?"}]
    first = await call(app, "POST", path, {"messages": asked, **rest})
    (made,) = [block for block in first.json["content"] if block["type"] == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": made["id"], "content": "5"}
    asked += [{"role": "assistant", "content": first.json["content"]}, {"role": "user", "content": [result]}]
    return [first, await call(app, "POST", path, {"messages": asked, **rest})]


@pytest.mark.parametrize("as_template", [False, True], ids=["as_sampled", "as_template"])
@pytest.mark.parametrize("ask", [ask_chat, ask_responses, ask_messages])
def test_tools_of_a_request_are_texts_in_every_dialect(ask: Any, as_template: bool) -> None:
    episode = an_episode(as_template=as_template)
    answers = asyncio.run(ask(GatewayApp(episode.gateway), episode))
    assert [answer.status for answer in answers] == [200, 200]
    record = episode.record
    assert [turn.parent for turn in record.turns] == [FROM_NOTHING, 0]
    assert spelled("gemma3", record.ids_through(1)) == (
        f"<bos><start_of_turn>user\nBe brief.\n\n{DESCRIBED}\n\n2 + 3?<end_of_turn>\n<start_of_turn>model\n"
        f"{CALL}<end_of_turn>\n"
        "<start_of_turn>user\n<tool_response>\n5\n</tool_response><end_of_turn>\n<start_of_turn>model\n"
        "It is 5.<end_of_turn>"
    )
