from typing import Any

import pytest

from asyncrl.engine import ChatMessage
from asyncrl.episodes.gateway.lineage import FoundPlace, Lineage, chain
from asyncrl.episodes.gateway.request import Function, called, tools_key
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT
from tests.episodes.gateway.doubles import user

PROMPT = [user("Hi")]
NONE = b""
TOOLS = '[{"type":"function","function":{"name":"look"}}]'


def assistant(content: str) -> ChatMessage:
    return {"role": "assistant", "content": content}


def find(lineage: Lineage, messages: list[ChatMessage], tools: bytes = NONE) -> FoundPlace:
    return lineage.find(messages, chain(messages), tools)


def answered(lineage: Lineage, messages: list[ChatMessage], said: str, turn: int, tools: bytes = NONE) -> FoundPlace:
    found = find(lineage, messages, tools)
    lineage.add(found.seen, assistant(said), tools, turn)
    return found


def lineage_of_two_turns() -> Lineage:
    lineage = Lineage(PROMPT)
    answered(lineage, PROMPT, "one", 0)
    answered(lineage, [*PROMPT, assistant("one"), user("more")], "two", 1)
    return lineage


def test_the_messages_of_the_prompt_follow_the_prompt() -> None:
    found = find(Lineage(PROMPT), PROMPT)
    assert (found.parent, list(found.new), found.cause) == (FROM_PROMPT, [], None)


def test_other_tools_than_those_of_the_prompt_begin_a_root() -> None:
    assert find(Lineage(PROMPT, TOOLS), PROMPT).cause == "new_root"
    assert find(Lineage(PROMPT, TOOLS), PROMPT, tools_key(TOOLS.replace(":", " :  "))).parent == FROM_PROMPT


def test_a_request_follows_the_turn_of_its_last_reply() -> None:
    request = [*PROMPT, assistant("one"), user("more"), assistant("two"), user("x"), user("y")]
    found = find(lineage_of_two_turns(), request)
    assert (found.parent, list(found.new), found.cause) == (1, [user("x"), user("y")], None)


def test_a_request_may_go_back_to_an_earlier_turn() -> None:
    found = find(lineage_of_two_turns(), [*PROMPT, assistant("one"), user("other")])
    assert (found.parent, list(found.new)) == (0, [user("other")])


def test_a_request_may_end_with_a_reply() -> None:
    found = find(lineage_of_two_turns(), [*PROMPT, assistant("one")])
    assert (found.parent, list(found.new)) == (0, [])


def test_a_chat_without_replies_is_a_new_root() -> None:
    found = find(lineage_of_two_turns(), [user("a sub-agent's task")])
    assert (found.parent, list(found.new), found.cause) == (FROM_NOTHING, [user("a sub-agent's task")], "new_root")


def test_a_foreign_reply_is_a_new_root() -> None:
    request = [user("1 + 1?"), assistant("2"), user("2 + 2?")]
    lineage = lineage_of_two_turns()
    assert answered(lineage, request, "four", 2).cause == "new_root"
    assert find(lineage, [*request, assistant("four"), user("3 + 3?")]).parent == 2


def test_an_edited_reply_is_told() -> None:
    found = find(lineage_of_two_turns(), [*PROMPT, assistant("one!"), user("more")])
    assert (found.parent, found.cause) == (FROM_NOTHING, "edited_reply")


@pytest.mark.parametrize("sent", ["one two ", "\n\none  two", "one\ttwo"])
def test_a_reply_whose_white_space_a_client_changed_is_followed_as_it_was_sampled(sent: str) -> None:
    lineage = Lineage(PROMPT)
    answered(lineage, PROMPT, " one two", 0)
    found = find(lineage, [*PROMPT, assistant(sent), user("more")])
    assert (found.parent, found.cause) == (0, None)


def test_a_reply_without_its_thought_and_with_other_ids_of_calls_is_followed() -> None:
    def calling(call_id: str) -> ChatMessage:
        return {**assistant(""), "tool_calls": [called(call_id, Function("look", {"a": 1, "b": 2}))]}

    lineage = Lineage(PROMPT)
    lineage.add(chain(PROMPT)[-1], {**calling("call_0_0"), "reasoning_content": "hm"}, b"", 0)
    answer = {"role": "tool", "content": "a box", "tool_call_id": "mine"}
    assert find(lineage, [*PROMPT, calling("mine"), answer]).parent == 0
    other = {**calling("mine"), "tool_calls": [called("mine", Function("look", {"a": 2}))]}
    assert find(lineage, [*PROMPT, other, answer]).cause == "edited_reply"


def test_numbers_of_a_call_may_come_back_as_javascript_writes_them() -> None:
    def calling(arguments: Any) -> ChatMessage:
        return {**assistant(""), "tool_calls": [called("call_0_0", Function("wait", arguments))]}

    lineage = Lineage(PROMPT)
    lineage.add(chain(PROMPT)[-1], calling({"ms": 120000.0, "rate": 0.5}), b"", 0)
    assert find(lineage, [*PROMPT, calling({"rate": 0.5, "ms": 120000})]).parent == 0
    assert find(lineage, [*PROMPT, calling({"rate": 0.5, "ms": 120001})]).cause == "edited_reply"


def test_of_two_turns_with_the_same_call_the_one_whose_id_comes_back_is_followed() -> None:
    lineage = Lineage(PROMPT)
    for turn, thought in enumerate(("a box", "another")):
        reply = {**assistant(""), "tool_calls": [called(f"call_{turn}_0", Function("look", {}))]}
        lineage.add(chain(PROMPT)[-1], {**reply, "reasoning_content": thought}, b"", turn)
    for turn in (0, 1):
        sent = {**assistant(""), "tool_calls": [called(f"call_{turn}_0", Function("look", {}))]}
        assert find(lineage, [*PROMPT, sent]).parent == turn, "without the thought"


def test_of_two_replies_with_the_same_words_the_one_that_is_sent_back_is_followed() -> None:
    lineage = Lineage(PROMPT)
    answered(lineage, PROMPT, "one two", 0)
    answered(lineage, PROMPT, "one  two", 1)
    assert find(lineage, [*PROMPT, assistant("one two"), user("more")]).parent == 0
    assert find(lineage, [*PROMPT, assistant("one  two"), user("more")]).parent == 1


def test_an_edited_history_is_told() -> None:
    found = find(lineage_of_two_turns(), [user("Hi!"), assistant("one"), user("more")])
    assert (found.parent, found.cause) == (FROM_NOTHING, "edited_history")


def test_changed_tools_are_told() -> None:
    found = find(lineage_of_two_turns(), [*PROMPT, assistant("one"), user("more")], tools_key(TOOLS))
    assert (found.parent, found.cause) == (FROM_NOTHING, "tools_changed")


def test_of_two_turns_that_said_the_same_the_first_is_followed() -> None:
    lineage = lineage_of_two_turns()
    answered(lineage, PROMPT, "one", 2)
    assert find(lineage, [*PROMPT, assistant("one"), user("more")]).parent == 0
