import json
from typing import Any

import pytest

from asyncrl.rollout.gateway.chat_request import UNSUPPORTED, ChatRequest, read_request
from asyncrl.rollout.gateway.refusal import Refused

MESSAGES = [{"role": "user", "content": "Hi"}]
LOOK = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}


def read(*run_stop: str, **fields: Any) -> ChatRequest:
    return read_request(json.dumps({"messages": MESSAGES} | fields).encode(), run_stop)


def refusal(**fields: Any) -> Refused:
    with pytest.raises(Refused) as refused:
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
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "look"}}}, "tool_choice"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"logprobs": True, "top_logprobs": 5}, "top_logprobs"),
        ({"stop": ["\n"]}, "stop"),
    ],
)
def test_a_promise_that_the_policy_would_not_keep_is_refused(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


def test_what_the_run_does_anyway_is_accepted() -> None:
    assert read("a", "b", stop=["b", "a"]) == read("a", stop="a") == read(stop=[]) == read()
    assert read(response_format={"type": "text"}, modalities=["text"], top_logprobs=0) == read()


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []}, {"messages": "Hi"}, {"messages": [{"role": "robot"}]}, {"messages": [{"content": "x"}]},
        {"messages": [{"role": "user", "content": 1}]}, {"n": 0}, {"n": 129}, {"n": "1"}, {"max_tokens": 0},
        {"max_tokens": 1.5}, {"max_tokens": True}, {"temperature": "hot"}, {"stream": "yes"}, {"tools": [{}]},
        {"tools": [{"type": "retrieval", "function": {"name": "x"}}]}, {"tools": [{"function": {"name": ""}}]},
        {"tools": {"function": {"name": "x"}}}, {"seed": "x"}, {"stop": [1]}, {"model": None}, {"model": 1},
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
    with pytest.raises(Refused, match="the body is"):
        read_request(raw, ())


def test_deeply_nested_fields_are_refused() -> None:
    tools = '[{"function":{"name":"x","parameters":{"a":' + "[" * 100_000 + "]" * 100_000 + "}}}]"
    with pytest.raises(Refused):
        read_request(f'{{"messages":[{{"role":"user"}}],"tools":{tools}}}'.encode(), ())


def test_requests_that_differ_in_what_they_ask_for_are_told_apart() -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"n": 2},
        {"seed": 1},
        {"max_tokens": 5},
        {"tools": [LOOK]},
        {"tools": [LOOK], "tool_choice": "none"},
    ]
    assert len({read(**fields).identity(b"") for fields in variants}) == len(variants)
    assert read(temperature=1, stream=True, logprobs=True).identity(b"") == read().identity(b"")
    assert read().identity(b"a") != read().identity(b"b")
