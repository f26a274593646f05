import json
from typing import Any

import msgspec
import pytest

from asyncrl.episodes.gateway import chat
from asyncrl.episodes.gateway.chat import UNSUPPORTED
from asyncrl.episodes.gateway.request import (
    ChatRequest,
    Function,
    RefusedRequest,
    SentMessage,
    Wishes,
    called,
    compact,
    normal,
    tools_key,
)
from asyncrl.messages.words import Unenforced

MESSAGES = [{"role": "user", "content": "Hi"}]
LOOK: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}},
}


def read(*allowed: str, **fields: Any) -> ChatRequest:
    return chat.read(json.dumps({"messages": MESSAGES} | fields).encode(), Wishes(allowed))


def refusal(**fields: Any) -> RefusedRequest:
    with pytest.raises(RefusedRequest) as refused:
        read(**fields)
    return refused.value


def test_messages_are_in_their_normal_form() -> None:
    assert read(messages=[{"role": "developer", "content": [{"type": "text", "text": "x"}]}]).messages == [
        {"role": "system", "content": "x"}
    ]


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 3}, {"max_completion_tokens": 3}, {"max_tokens": 9, "max_completion_tokens": 3}]
)
def test_the_smaller_limit_holds(fields: dict[str, int]) -> None:
    assert read(**fields).max_tokens == 3


def test_sampling_is_ignored_and_named() -> None:
    assert read(temperature=0.2, top_p=0.9, seed=7, presence_penalty=0).ignored == (
        "temperature",
        "top_p",
        "presence_penalty",
    )


def test_half_a_character_of_a_file_name_becomes_a_replacement_character() -> None:
    sent = {"role": "tool", "content": "caf\udce9 \ud83d\ude00", "tool_call_id": "1"}
    assert read(messages=[*MESSAGES, sent]).messages[1]["content"] == "caf\ufffd \U0001f600"


def test_calls_are_read_if_there_are_tools_and_the_program_wants_them() -> None:
    assert not read().reads_calls
    assert read(tools=[LOOK]).reads_calls
    assert read(tools=[LOOK], tool_choice="auto").reads_calls
    assert not read(tools=[LOOK], tool_choice="none").reads_calls


def test_tools_keep_the_order_of_their_keys() -> None:
    assert json.loads(read(tools=[LOOK]).tools) == [LOOK]
    assert list(json.loads(read(tools=[LOOK]).tools)[0]) == ["type", "function"]


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_field_that_would_not_be_honoured_is_refused(name: str) -> None:
    refused = refusal(**{name: {"1": 1}})
    assert (refused.status, refused.code, refused.param) == (400, "unsupported_parameter", name)
    assert read(**{name: None}) == read()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"logprobs": True, "top_logprobs": 5}, "top_logprobs"),
    ],
)
def test_what_nobody_here_can_do_is_refused(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


GUIDED: list[tuple[Unenforced, dict[str, Any]]] = [(name, {name: "x"}) for name in chat.GUIDED]
FORMS: list[tuple[Unenforced, dict[str, Any]]] = [
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "look"}}}),
    ("parallel_tool_calls", {"parallel_tool_calls": False}),
    ("strict", {"tools": [{**LOOK, "function": {**LOOK["function"], "strict": True}}]}),
    *GUIDED,
]


@pytest.mark.parametrize(("name", "fields"), FORMS)
def test_a_form_that_nothing_enforces_is_named_and_refused_only_if_the_operator_says_so(
    name: Unenforced, fields: dict[str, Any]
) -> None:
    raw = json.dumps({"messages": MESSAGES, "tools": [LOOK], **fields}).encode()
    assert (chat.read(raw, Wishes()).unenforced, chat.read(raw, Wishes()).reads_calls) == ((name,), True)
    with pytest.raises(RefusedRequest, match=f"{name} is not enforced") as refused:
        chat.read(raw, Wishes(refused=[name]))
    assert (refused.value.status, refused.value.param) == (400, name)


@pytest.mark.parametrize(
    "fields",
    [
        {"parallel_tool_calls": True},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"guided_json": None},
        {"tools": [{**LOOK, "function": {**LOOK["function"]}}]},
    ],
)
def test_a_form_that_the_policy_has_anyway_is_not_named(fields: dict[str, Any]) -> None:
    assert read(**{"tools": [LOOK], **fields}) == read(tools=[LOOK])


def test_what_the_operator_lets_be_ignored_is_named_and_not_refused() -> None:
    assert read("logit_bias", logit_bias={"1": 1}).ignored == ("logit_bias",)
    assert "environment.gateway_ignores = ['logit_bias']" in refusal(logit_bias={"1": 1}).message


def test_what_the_run_does_anyway_is_accepted() -> None:
    assert read(stop=[]) == read(stop=None) == read()
    assert read(response_format={"type": "text"}, modalities=["text"], top_logprobs=0) == read()


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []}, {"messages": "Hi"}, {"messages": [{"role": "robot"}]}, {"messages": [{"content": "x"}]},
        {"messages": [{"role": "user", "content": 1}]}, {"n": 0}, {"n": 129}, {"n": "1"}, {"max_tokens": 0},
        {"max_tokens": 1.5}, {"max_tokens": True}, {"temperature": "hot"}, {"stream": "yes"}, {"tools": [{}]},
        {"tools": [{"function": {"name": ""}}]},
        {"tools": {"function": {"name": "x"}}}, {"seed": "x"}, {"stop": [1]}, {"stop": ""}, {"stop": ["a"] * 17},
        {"model": None}, {"model": 1},
    ],
)  # fmt: skip
def test_wrong_types_are_refused(fields: dict[str, Any]) -> None:
    refused = refusal(**fields)
    assert (refused.status, refused.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"messages":"\xff"}', b"[" * 100_000, b'{"a":' * 50_000, b'{"n":1e999}']
)  # fmt: skip
def test_a_body_that_is_no_request_is_refused(raw: bytes) -> None:
    with pytest.raises(RefusedRequest, match="the body is"):
        chat.read(raw, Wishes())


def test_deeply_nested_fields_are_refused() -> None:
    tools = '[{"function":{"name":"x","parameters":{"a":' + "[" * 100_000 + "]" * 100_000 + "}}}]"
    with pytest.raises(RefusedRequest):
        chat.read(f'{{"messages":[{{"role":"user"}}],"tools":{tools}}}'.encode(), Wishes())


def test_requests_that_differ_in_what_they_ask_for_are_told_apart() -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"n": 2},
        {"seed": 1},
        {"max_tokens": 5},
        {"stop": "x"},
        {"tools": [LOOK]},
        {"tools": [LOOK], "tool_choice": "none"},
    ]
    assert len({read(**fields).identity(b"") for fields in variants}) == len(variants)
    assert read(temperature=1, stream=True, logprobs=True).identity(b"") == read().identity(b"")
    assert read().identity(b"a") != read().identity(b"b")


# ── test messages ─────────────────────────────────────────────────────────────────────────────

CALL = {"id": "call_0_0", "type": "function", "function": {"name": "look", "arguments": '{"at": 1, "box": "a"}'}}


def normalised(**message: Any) -> dict[str, Any]:
    return msgspec.convert(message, SentMessage).normal()


def test_null_and_unknown_fields_are_left_out() -> None:
    sent = normalised(role="assistant", content="x", refusal=None, audio=None, tool_calls=None, annotations=[])
    assert sent == {"role": "assistant", "content": "x"}


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": " a"}, {"type": "text", "text": " ?"}]
    assert normalised(role="user", content=parts) == {"role": "user", "content": " a ?"}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_a_thought_has_one_name(name: str) -> None:
    assert normalised(role="assistant", content="x", **{name: "hm"})["reasoning_content"] == "hm"


def test_missing_content_is_empty_text() -> None:
    assert (
        normalised(role="assistant")
        == normalised(role="assistant", content=None)
        == normalised(role="assistant", content=[])
    )


def test_whitespace_is_kept() -> None:
    assert normalised(role="user", content=" a\n ")["content"] == " a\n "


@pytest.mark.parametrize("arguments", ['{"box":"a","at":1}', '{"at": 1,\n "box": "a"}', {"box": "a", "at": 1}])
def test_arguments_of_calls_have_one_form(arguments: Any) -> None:
    call = {"index": 0, "id": "call_0_0", "type": "function", "function": {"arguments": arguments, "name": "look"}}
    expected = [called("call_0_0", Function("look", '{"at":1,"box":"a"}'))]
    assert normalised(role="assistant", content=None, tool_calls=[call])["tool_calls"] == expected


def test_ids_of_calls_are_kept() -> None:
    assert normalised(role="assistant", tool_calls=[CALL]) != normalised(
        role="assistant", tool_calls=[CALL | {"id": "b"}]
    )


@pytest.mark.parametrize("arguments", ["{", "", "[" * 100_000])
def test_arguments_that_are_no_json_stay(arguments: str) -> None:
    assert compact(arguments) == arguments


def test_a_developer_is_the_system() -> None:
    assert normalised(role="developer", content="x") == {"role": "system", "content": "x"}


def test_the_answer_of_a_tool_keeps_its_id() -> None:
    assert normalised(role="tool", content="+5", tool_call_id="call_0_0")["tool_call_id"] == "call_0_0"


@pytest.mark.parametrize("kind", ["input_audio", "file", "video"])
def test_parts_that_are_neither_text_nor_pictures_are_refused(kind: str) -> None:
    with pytest.raises(RefusedRequest, match=f"a part of type '{kind}': only text and pictures are read"):
        normalised(role="user", content=[{"type": kind}])


def test_calls_of_another_role_are_refused() -> None:
    with pytest.raises(RefusedRequest, match="a message of user has tool_calls"):
        normalised(role="user", tool_calls=[CALL])


def test_messages_of_a_prompt_have_the_same_form() -> None:
    assert normal([{"role": "user", "content": "x", "name": None}]) == [{"role": "user", "content": "x"}]


def test_tools_are_compared_without_the_order_of_their_keys() -> None:
    assert tools_key('[{"a": 1, "b": 2}]') == tools_key('[{"b":2,"a":1}]') != tools_key("")


# ── test refusal ──────────────────────────────────────────────────────────────────────────────


def test_the_body_has_the_form_of_openais_errors() -> None:
    error = {"message": "n is 0", "type": "invalid_request_error", "param": "n", "code": "invalid_request"}
    assert chat.refusal(RefusedRequest(400, "invalid_request", "n is 0", param="n")) == {"error": error}


def test_a_fault_of_the_server_is_called_so() -> None:
    assert chat.refusal(RefusedRequest(503, "busy", "later"))["error"]["type"] == "server_error"


def test_clients_are_told_whether_to_retry() -> None:
    assert RefusedRequest(503, "a", "b").headers == []
    assert RefusedRequest(503, "a", "b", retry=False).headers == [(b"x-should-retry", b"false")]
    assert RefusedRequest(503, "a", "b", retry=True).headers == [(b"x-should-retry", b"true")]
