"""Streams of the three dialects: events in the order of the makers' servers, which add up to the whole reply."""

import json
import re
from collections.abc import Sequence
from functools import reduce
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.engine import CalledTool, PolicyTurn
from asyncrl.episodes.gateway import anthropic, chat, responses
from asyncrl.episodes.gateway.reply import Choice, Reply, Shown, choice_of
from asyncrl.episodes.gateway.request import ChatRequest, RefusedRequest

TOOLS = json.dumps([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}])
TEXTS = st.sampled_from(["", "I look.", "é\n\n", "data: [DONE]"])


def text(token_ids: Sequence[int]) -> str:
    return "".join(map(chr, token_ids))


@st.composite
def choices(draw: st.DrawFn, turn: int) -> Choice:
    arguments = st.dictionaries(st.sampled_from("ab"), st.none() | st.integers(-9, 9) | TEXTS, max_size=2)
    calls = [
        CalledTool(name="look", arguments=one, id=draw(st.sampled_from(["", "written"])))
        for one in draw(st.lists(arguments, max_size=3))
    ]
    ids = draw(st.lists(st.sampled_from([ord("a"), ord("é"), 0xFFFD]), max_size=3))
    return choice_of(
        PolicyTurn(text="", content=draw(TEXTS), thought=draw(TEXTS), tool_calls=calls),
        turn,
        reads_calls=True,
        taken_ids=set(),
        stop=draw(st.sampled_from([[], ["look"]])),
        token_ids=ids,
        logprobs=[-0.5] * len(ids),
        finish_reason=draw(st.sampled_from(["stop", "length"])),
    )


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    made = [draw(choices(turn)) for turn in range(3, 4 + draw(st.integers(0, 2)))]
    return Reply(created=17, model="m", choices=made, parent=2, context_ids=[3], num_prompt=3)


REQUESTS = st.builds(
    ChatRequest,
    messages=st.just([{"role": "system", "content": "Be brief."}]),
    num_instructions=st.integers(0, 1),
    tools=st.sampled_from(["", TOOLS]),
    shows_thoughts=st.booleans(),
)
SHOWN = st.builds(
    Shown, usage=st.booleans(), prompt_ids=st.none() | st.just([1, 2, 3]), text=st.sampled_from([None, text])
)


def told(dialect: ModuleType, reply: Reply, request: ChatRequest, shown: Shown) -> tuple[Any, list[dict[str, Any]]]:
    """The whole reply, and the events of the same as a stream, whose names are their types."""
    events = read(dialect.stream(reply, request, shown).removesuffix(chat.LAST_EVENT))
    return msgspec.json.decode(dialect.whole(reply, request, shown)), events


def read(stream: bytes) -> list[dict[str, Any]]:
    events = []
    for one in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, _, data = one.partition("data: ")
        events.append(json.loads(data))
        assert name == (f"event: {events[-1]['type']}\n" if "type" in events[-1] else "")
    return events


# ── chat completions ──────────────────────────────────────────────────────────────────────────

CHAT = "role (thought )?(words )?(call arguments )*end "


def said_in(delta: dict[str, Any]) -> str:
    """The one thing that a delta says."""
    match delta:
        case {} if not delta:
            return "end"
        case {"role": "assistant", "content": "" | None, "refusal": None} if len(delta) == 3:
            return "role"
        case {"reasoning_content": str(said)} if said and len(delta) == 1:
            return "thought"
        case {"content": str(said)} if said and len(delta) == 1:
            return "words"
        case {"tool_calls": [{"id": str(), "type": "function", "function": {"name": "look", "arguments": ""}}]}:
            return "call"
        case {"tool_calls": [{"function": {"arguments": str(), **others}, **beside}]} if not others:
            assert beside.keys() == {"index"}
            return "arguments"
    raise AssertionError(delta)


def added(one: Any, more: Any) -> Any:
    """What a client has of two deltas: texts are joined, items of lists matched by index, and null says nothing."""
    match one, more:
        case (None, _) | (_, None):
            return more if one is None else one
        case str(), str():
            return one + more
        case dict(), dict():
            return {key: added(one.get(key), more.get(key)) for key in {**one, **more}}
        case list(), [{"index": place}]:
            begun = one[place:] or [{}]
            return [*one[:place], {**added(begun[0], more[0]), "index": place}]
    return more


@given(replies(), REQUESTS, SHOWN)
def test_chunks_say_one_thing_each_in_openais_order_and_add_up(
    reply: Reply, request: ChatRequest, shown: Shown
) -> None:
    whole, chunks = told(chat, reply, request, shown)
    assert chat.stream(reply, request, shown).count(chat.LAST_EVENT) == 1
    if shown.usage:
        last = chunks.pop()
        assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert all(chunk.get("usage", "none") == (None if shown.usage else "none") for chunk in chunks)
    for key in ("id", "created", "model", "system_fingerprint"):
        assert {chunk[key] for chunk in chunks} == {whole[key]}
    for expected in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == expected["index"]]
        assert re.fullmatch(CHAT, "".join(f"{said_in(part['delta'])} " for part in parts))
        message = reduce(added, (part["delta"] for part in parts))
        for place, call in enumerate(message.get("tool_calls", ())):
            assert call.pop("index") == place
        assert [part["finish_reason"] for part in parts] == [*[None] * (len(parts) - 1), expected["finish_reason"]]
        for key, asked in (("logprobs", shown.text), ("token_ids", shown.prompt_ids)):
            found = [part[key] for part in parts if part.get(key) is not None]
            assert found == ([] if asked is None else [expected[key]]), "once, for clients that add them up"
        assert message == expected["message"]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [shown.prompt_ids, *[None] * (len(chunks) - 1)]


# ── responses ─────────────────────────────────────────────────────────────────────────────────

RESPONSES = (
    "created in_progress "
    "(item.added part.added reasoning_text.delta reasoning_text.done part.done item.done )?"
    "(item.added part.added (output_text.delta )?output_text.done part.done item.done )?"
    "(item.added function_call_arguments.delta function_call_arguments.done item.done )*"
    "(completed|incomplete) "
)


@given(replies(), REQUESTS, SHOWN)
def test_events_of_a_response_come_in_openais_order_and_add_up(
    reply: Reply, request: ChatRequest, shown: Shown
) -> None:
    whole, events = told(responses, reply, request, shown)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [re.sub("response.|output_(?=item)|content_(?=part)", "", event["type"]) for event in events]
    assert re.fullmatch(RESPONSES, "".join(f"{kind} " for kind in kinds))
    output: list[Any] = []
    for kind, event in zip(kinds, events, strict=True):
        item = output[event["output_index"]] if "item_id" in event else {}
        assert event.get("item_id") == item.get("id")
        match kind.split("."):
            case ["created" | "in_progress"]:
                assert event["response"]["status"] == "in_progress"
                assert (event["response"]["output"], event["response"]["usage"]) == ([], None)
            case ["item", "added"]:
                assert event["output_index"] == len(output)
                output.append(event["item"])
            case ["part", "added"]:
                assert event["content_index"] == len(item["content"])
                item["content"].append(event["part"])
            case ["function_call_arguments", "delta"]:
                item["arguments"] += event["delta"]
            case ["function_call_arguments", "done"]:
                assert (item["name"], item["arguments"]) == (event["name"], event["arguments"])
            case [_, "delta"]:
                part = item["content"][event["content_index"]]
                part |= {"text": part["text"] + event["delta"]}
            case ["output_text", "done"]:
                part = item["content"][event["content_index"]]
                assert part["text"] == event["text"]
                part["logprobs"] = event["logprobs"]
            case ["part", "done"]:
                assert item["content"][event["content_index"]] == event["part"]
            case ["item", "done"]:
                expected = {**event["item"], **({"status": "in_progress"} if "status" in event["item"] else {})}
                assert output[event["output_index"]] == expected
                output[event["output_index"]] = event["item"]
    assert events[-1]["response"] == whole
    assert (whole["output"], events[-1]["type"]) == (output, f"response.{whole['status']}")


def test_a_response_that_breaks_off_has_its_error_as_documented_and_as_openai_sends_it() -> None:
    (event,) = read(responses.broken(RefusedRequest(503, "engine_failed", "no slot")))
    assert event["type"] == "error"
    assert event["error"] == {**event["error"], "code": "engine_failed", "message": "no slot", "param": None}
    assert event == {**event["error"], **event}


# ── messages ──────────────────────────────────────────────────────────────────────────────────

MESSAGES = (
    "message_start "
    "(content_block_start thinking_delta signature_delta content_block_stop )?"
    "(content_block_start (text_delta )?content_block_stop )?"
    "(content_block_start input_json_delta content_block_stop )*"
    "message_delta message_stop "
)


@given(replies(), REQUESTS, SHOWN)
def test_events_of_a_message_come_in_anthropics_order_and_add_up(
    reply: Reply, request: ChatRequest, shown: Shown
) -> None:
    whole, events = told(anthropic, reply, request, shown)
    kinds = [event["delta"].get("type", event["type"]) if "delta" in event else event["type"] for event in events]
    assert re.fullmatch(MESSAGES, "".join(f"{one} " for one in kinds))
    message = events[0]["message"]
    for name, event in zip(kinds, events, strict=True):
        block = message["content"][event["index"]] if event["type"] == "content_block_delta" else {}
        match name:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case "input_json_delta":
                assert block["input"] == {}
                block["input"] = json.loads(event["delta"]["partial_json"])
            case "thinking_delta" | "signature_delta" | "text_delta":
                key = name.removesuffix("_delta")
                block[key] += event["delta"][key]
            case "message_delta":
                message |= {**event["delta"], "usage": event["usage"]}
    assert message == whole
    assert (whole["stop_reason"] == "tool_use") == (reply.choices[0].finish_reason == "tool_calls")


# ── types ─────────────────────────────────────────────────────────────────────────────────────

TYPES = {
    chat: ("openai.types.chat:ChatCompletion", "openai.types.chat:ChatCompletionChunk"),
    responses: ("openai.types.responses:Response", "openai.types.responses:ResponseStreamEvent"),
    anthropic: ("anthropic.types:Message", "anthropic.types:RawMessageStreamEvent"),
}
"""Types of a maker's client: of a whole reply, and of an event."""


@pytest.mark.parametrize("dialect", TYPES, ids=lambda dialect: dialect.__name__.rpartition(".")[2])
def test_replies_and_events_have_the_fields_of_the_makers_types(dialect: ModuleType) -> None:
    pydantic = pytest.importorskip("pydantic")
    named = [name.split(":") for name in TYPES[dialect]]
    of_reply, of_event = (pydantic.TypeAdapter(getattr(pytest.importorskip(home), name)) for home, name in named)

    @given(replies(), REQUESTS, SHOWN)
    def validates(reply: Reply, request: ChatRequest, shown: Shown) -> None:
        whole, events = told(dialect, reply, request, shown)
        of_reply.validate_python(whole)
        for event in events:
            of_event.validate_python(event)

    validates()
