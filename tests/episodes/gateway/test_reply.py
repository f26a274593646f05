"""Replies as chat completions, and what of a turn is delivered."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from asyncrl.engine import CalledTool, PolicyTurn
from asyncrl.episodes.gateway import chat
from asyncrl.episodes.gateway.reply import Choice, Reply, Shown, choice_of
from asyncrl.episodes.gateway.request import ChatRequest
from asyncrl.messages.words import FinishReason

CALLS = PolicyTurn(
    text="all of it", content="I look.", tool_calls=[CalledTool(name="look", arguments={"b": 1, "a": 2})]
)
MESSAGE = {"role": "assistant", "content": "é ?"}
CHOICE = Choice(turn=3, message=MESSAGE, finish_reason="stop", token_ids=[7, 8], logprobs=[-0.5, -1.0])
REPLY = Reply(created=17, model="m", choices=[CHOICE], parent=2, context_ids=[3], num_prompt=3)
REQUEST = ChatRequest(messages=[])
PROMPT_IDS = [1, 2, 3]


def text(token_ids: Sequence[int]) -> str:
    return "".join({7: "é", 8: " ?", 9: "\ufffd"}[token] for token in token_ids)


def whole(**shown: Any) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(chat.whole(REPLY, REQUEST, Shown(**shown)))
    return body


def test_a_whole_reply_has_usage() -> None:
    body = whole()
    assert body["id"] == "chatcmpl-3"
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert body["choices"][0]["message"] == {**CHOICE.message, "refusal": None}
    assert body["choices"][0]["logprobs"] is None
    assert "prompt_token_ids" not in body


def test_logprobs_are_those_of_the_sampled_tokens() -> None:
    content = whole(text=text)["choices"][0]["logprobs"]["content"]
    assert content[0] == {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": []}


def test_a_token_that_is_a_part_of_a_character_has_no_bytes_rather_than_false_ones() -> None:
    part = Choice(turn=3, message=MESSAGE, finish_reason="stop", token_ids=[9], logprobs=[-0.5])
    body = chat.whole(msgspec.structs.replace(REPLY, choices=[part]), REQUEST, Shown(text=text))
    assert msgspec.json.decode(body)["choices"][0]["logprobs"]["content"][0]["bytes"] is None


def test_token_ids_are_added_if_asked_for() -> None:
    body = whole(prompt_ids=PROMPT_IDS)
    assert (body["prompt_token_ids"], body["choices"][0]["token_ids"]) == ([1, 2, 3], [7, 8])


# ── what of a turn is delivered ───────────────────────────────────────────────────────────────


def delivered(
    said: PolicyTurn,
    *,
    reads_calls: bool = True,
    stop: Sequence[str] = (),
    reason: FinishReason = "stop",
    taken_ids: set[str] | None = None,
) -> Choice:
    return choice_of(
        said,
        3,
        reads_calls=reads_calls,
        taken_ids=set() if taken_ids is None else taken_ids,
        stop=stop,
        token_ids=[7],
        logprobs=[-0.5],
        finish_reason=reason,
    )


def test_calls_have_ids_that_depend_on_the_turn_alone() -> None:
    choice = delivered(CALLS)
    assert choice.content == "I look."
    assert choice.message["tool_calls"] == [
        {"id": "call_3_0", "type": "function", "function": {"name": "look", "arguments": '{"a":2,"b":1}'}}
    ]
    assert choice.finish_reason == "tool_calls"
    assert delivered(CALLS, reason="length").finish_reason == "length"


def test_without_tools_the_text_is_delivered_whole() -> None:
    choice = delivered(CALLS, reads_calls=False)
    assert (choice.message, choice.finish_reason) == ({"role": "assistant", "content": "all of it"}, "stop")


@pytest.mark.parametrize("reads_calls", [True, False])
def test_a_thought_stands_beside_the_answer_and_not_in_it(reads_calls: bool) -> None:
    said = PolicyTurn(text="<think>hm</think>\n\nYes.", content="Yes.", thought="hm")
    expected = {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}
    assert delivered(said, reads_calls=reads_calls).message == expected
    called = PolicyTurn(text="<think>hm</think>x", content="", thought="hm", tool_calls=CALLS.tool_calls)
    assert delivered(called).thought == "hm"
    assert delivered(called, reads_calls=False).content == "x"


@pytest.mark.parametrize(
    ("stop", "content", "stopped_by"),
    [(["?"], "I am ", "?"), (["!", "am"], "I ", "am"), (["x"], "I am ?!", "")],
)
def test_a_stop_of_the_request_ends_the_text_and_never_the_tokens(
    stop: list[str], content: str, stopped_by: str
) -> None:
    choice = delivered(PolicyTurn(text="I am ?!", content="I am ?!"), stop=stop)
    assert (choice.content, choice.stopped_by, choice.token_ids) == (content, stopped_by, [7])


def test_an_id_that_the_policy_wrote_twice_in_an_episode_names_one_call() -> None:
    twice = [CalledTool(name="look", arguments={}, id="functions.look:0")] * 2
    taken: set[str] = set()
    calls = delivered(PolicyTurn(text="", tool_calls=twice), taken_ids=taken).message["tool_calls"]
    assert [call["id"] for call in calls] == ["functions.look:0", "call_3_1"]
    again = delivered(PolicyTurn(text="", tool_calls=twice[:1]), taken_ids=taken).message["tool_calls"]
    assert again[0]["id"] == "call_3_0"


def test_a_call_with_a_problem_is_text() -> None:
    problem = CalledTool(name="", arguments={}, problem="?")
    broken = PolicyTurn(text="all of it", content="<broken>", tool_calls=[problem])
    assert delivered(broken).message == {"role": "assistant", "content": "<broken>"}

    beside = PolicyTurn(text="all of it", content="<broken>", tool_calls=[problem, *CALLS.tool_calls])
    message = delivered(beside).message
    assert message["content"] == "<broken>"
    assert [call["function"]["name"] for call in message["tool_calls"]] == [call.name for call in CALLS.tool_calls]
