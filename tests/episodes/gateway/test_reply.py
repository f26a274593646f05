import json
from collections.abc import Sequence
from typing import Any

import msgspec

from asyncrl.engine import CalledTool, PolicyTurn
from asyncrl.episodes.gateway.reply import Choice, Reply, delivered, finish_reason

CALLS = PolicyTurn(
    text="all of it", content="I look.", tool_calls=[CalledTool(name="look", arguments={"b": 1, "a": 2})]
)
MESSAGE = {"role": "assistant", "content": "é ?"}
CHOICE = Choice(turn=3, message=MESSAGE, finish_reason="stop", token_ids=[7, 8], logprobs=[-0.5, -1.0])
REPLY = Reply(id="chatcmpl-3", created=17, model="m", choices=[CHOICE], parent=2, context_ids=[3], num_prompt=3)
PROMPT_IDS = [1, 2, 3]


def text(token_ids: Sequence[int]) -> str:
    return "".join({7: "é", 8: " ?"}[token] for token in token_ids)


def chunks(raw: bytes) -> list[dict[str, Any]]:
    events = raw.decode().removesuffix("\n\n").split("\n\n")
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_a_whole_reply_has_usage() -> None:
    body = msgspec.json.decode(REPLY.body())
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert body["choices"][0]["message"] == CHOICE.message
    assert body["choices"][0]["logprobs"] is None
    assert "prompt_token_ids" not in body


def test_logprobs_are_those_of_the_sampled_tokens() -> None:
    content = msgspec.json.decode(REPLY.body(text=text))["choices"][0]["logprobs"]["content"]
    assert content[0] == {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": []}


def test_token_ids_are_added_if_asked_for() -> None:
    body = msgspec.json.decode(REPLY.body(prompt_ids=PROMPT_IDS))
    assert (body["prompt_token_ids"], body["choices"][0]["token_ids"]) == ([1, 2, 3], [7, 8])


def test_a_stream_adds_up_to_the_reply() -> None:
    parts = chunks(REPLY.events(usage=True, prompt_ids=PROMPT_IDS))
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts if part["choices"]) == "é ?"
    assert [part["choices"][0]["finish_reason"] for part in parts if part["choices"]] == [None, None, "stop"]
    assert parts[-1] == {**parts[-1], "choices": [], "usage": REPLY.usage}
    assert parts[0]["prompt_token_ids"] == [1, 2, 3]


def test_usage_is_streamed_only_if_asked_for() -> None:
    assert all(part["choices"] for part in chunks(REPLY.events()))


def test_calls_have_ids_that_depend_on_the_turn_alone() -> None:
    message = delivered(CALLS, 3, reads_calls=True)
    assert message["content"] == "I look."
    assert message["tool_calls"] == [
        {"id": "call_3_0", "type": "function", "function": {"name": "look", "arguments": '{"a":2,"b":1}'}}
    ]
    assert finish_reason(message, "stop") == "tool_calls"
    assert finish_reason(message, "length") == "length"


def test_without_tools_the_text_is_delivered_whole() -> None:
    message = delivered(CALLS, 3, reads_calls=False)
    assert (message, finish_reason(message, "stop")) == ({"role": "assistant", "content": "all of it"}, "stop")


def test_a_call_with_a_problem_is_text() -> None:
    problem = CalledTool(name="", arguments={}, problem="?")
    broken = PolicyTurn(text="all of it", content="<broken>", tool_calls=[problem])
    assert delivered(broken, 3, reads_calls=True) == {"role": "assistant", "content": "all of it"}

    beside = PolicyTurn(text="all of it", content="<broken>", tool_calls=[problem, *CALLS.tool_calls])
    message = delivered(beside, 3, reads_calls=True)
    assert message["content"] == "<broken>"
    assert [call["function"]["name"] for call in message["tool_calls"]] == [call.name for call in CALLS.tool_calls]
