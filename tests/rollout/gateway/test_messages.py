from typing import Any

import msgspec
import pytest

from asyncrl.rollout.gateway.messages import Function, SentMessage, called, compact, normal, tools_key
from asyncrl.rollout.gateway.refusal import Refused

CALL = {"id": "call_0_0", "type": "function", "function": {"name": "look", "arguments": '{"at": 1, "box": "a"}'}}


def normalised(**message: Any) -> dict[str, Any]:
    return msgspec.convert(message, SentMessage).normal()


def test_null_and_unknown_fields_are_left_out() -> None:
    sent = normalised(role="assistant", content="x", refusal=None, audio=None, tool_calls=None, annotations=[])
    assert sent == {"role": "assistant", "content": "x"}


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": " a"}, {"type": "text", "text": " ?"}]
    assert normalised(role="user", content=parts) == {"role": "user", "content": " a ?"}


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


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video"])
def test_parts_that_are_not_text_are_refused(kind: str) -> None:
    with pytest.raises(Refused, match=f"a part of type '{kind}': only text is supported"):
        normalised(role="user", content=[{"type": kind}])


def test_calls_of_another_role_are_refused() -> None:
    with pytest.raises(Refused, match="a message of user has tool_calls"):
        normalised(role="user", tool_calls=[CALL])


def test_messages_of_a_prompt_have_the_same_form() -> None:
    assert normal([{"role": "user", "content": "x", "name": None}]) == [{"role": "user", "content": "x"}]


def test_tools_are_compared_without_the_order_of_their_keys() -> None:
    assert tools_key('[{"a": 1, "b": 2}]') == tools_key('[{"b":2,"a":1}]') != tools_key("")
