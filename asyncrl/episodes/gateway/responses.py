"""
``POST /v1/responses``: requests and replies as OpenAI's responses, whole or as a stream of events.

    reasoning, message, function_call (in a row)  ◀─▶  one message of the assistant: its thought, its text, its calls
    function_call_output                          ─▶   a message of the tool

A request may send the whole conversation, or the id of a response and what follows it.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from asyncrl.engine import ChatMessage
from asyncrl.episodes.gateway import chat
from asyncrl.episodes.gateway.reply import Choice, Reply, Shown, event
from asyncrl.episodes.gateway.request import (
    REFERENCE,
    ChatRequest,
    Count,
    Function,
    Integer,
    ModelName,
    Number,
    RefusedRequest,
    ReplyPart,
    RequestTool,
    SentMessage,
    Wishes,
    called,
    checked_tools,
    decoded,
    offered,
    turn_of,
)

# ── request ───────────────────────────────────────────────────────────────────────────────────

IGNORED = (
    "temperature", "top_p", "reasoning", "truncation", "max_tool_calls", "service_tier", "prompt_cache_key",
    "safety_identifier",
)  # fmt: skip
"""Fields that would change what is sampled or kept, and do not."""
UNSUPPORTED = ("background", "conversation", "prompt", "top_logprobs")
"""Fields that are refused unless they are null, false or empty, or the operator lets them be ignored."""
OUTPUT = ("reasoning", "function_call", "item_reference")
"""Types of items that a message of the assistant consists of, besides its text."""
PREFIX = "resp_"


class Item(Struct):
    """An item of the input: a message, or what its type says."""

    type: str = "message"
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[ReplyPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ReplyPart] | None = None
    summary: list[ReplyPart] | None = None

    @property
    def is_of_assistant(self) -> bool:
        return self.type in OUTPUT or (self.type == "message" and self.role == "assistant")

    @property
    def turn(self) -> int:
        """Turn that its id names; -1 if it names none."""
        return turn_of(self.id or "")


class TextFormat(Struct):
    type: str = "text"


class TextOptions(Struct):
    format: TextFormat | None = None


class OfferedFunction(Struct):
    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponsesBody(Struct):
    """Known fields of a request; others are not decoded."""

    input: str | Annotated[list[Item], Meta(min_length=1)]
    instructions: str | None = None
    model: ModelName = ""
    tools: list[OfferedFunction] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_output_tokens: Count | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    include: list[str] | None = None

    temperature: Number = None
    top_p: Number = None
    parallel_tool_calls: bool | None = None
    reasoning: Any = None
    truncation: str | None = None
    max_tool_calls: Integer | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    top_logprobs: Integer | None = None


BODY = msgspec.json.Decoder(ResponsesBody)


def read(raw: bytes, wishes: Wishes) -> ChatRequest:
    """Decode and check a request. Raises `RefusedRequest`."""
    body = decoded(raw, BODY.decode, "a request for a response")
    wishes.ignore(*(name for name in IGNORED if getattr(body, name) is not None))
    wishes.refuse_all(body, UNSUPPORTED)
    wishes.ask("response_format", body.text and body.text.format and body.text.format.type != "text")
    wishes.ask("parallel_tool_calls", body.parallel_tool_calls is False)
    functions = [tool for tool in body.tools or () if wishes.is_function(tool.type)]
    wishes.ask("strict", any(tool.strict for tool in functions))
    offers = (RequestTool(tool.name, tool.description, tool.parameters) for tool in functions)
    tools, key = checked_tools(offered(offers))
    items = [Item(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    instructions = [{"role": "system", "content": body.instructions}] if body.instructions else []
    previous = body.previous_response_id or ""
    return ChatRequest(
        messages=[*instructions, *_messages(items)],
        num_instructions=len(instructions),
        previous=previous,
        tools=tools,
        tools_key=key,
        reads_calls=wishes.reads_calls(body.tool_choice, has_tools=bool(tools)),
        model=body.model,
        max_tokens=body.max_output_tokens,
        stream=bool(body.stream),
        logprobs="message.output_text.logprobs" in (body.include or ()),
        ignored=wishes.ignored,
        unenforced=wishes.unenforced,
    )


def _messages(items: Sequence[Item]) -> list[ChatMessage]:
    """Messages of the input: items of one turn of the assistant, which stand in a row, are one message."""
    messages: list[ChatMessage] = []
    turn = NOBODY
    for item in items:
        if not item.is_of_assistant:
            messages.append(_message(item))
            turn = NOBODY
            continue
        if turn == NOBODY or (item.turn >= 0 and turn not in (item.turn, UNNAMED)):
            messages.append({"role": "assistant", "content": ""})
            turn = UNNAMED
        turn = item.turn if item.turn >= 0 else turn
        _add(messages[-1], item)
    return messages


NOBODY, UNNAMED = -2, -1
"""Turn of an item that is not the assistant's, and of one whose id names none."""


def _add(message: ChatMessage, item: Item) -> None:
    """Add an item to the message of the assistant that it is a part of."""
    if item.type == "function_call":
        calls = message.setdefault("tool_calls", [])
        calls.append(called(item.call_id or "", Function(item.name or "", item.arguments)))
    elif item.type == "item_reference":
        if item.turn < 0:
            problem = f"input refers to {item.id!r:.80}, which is no item of this episode"
            raise RefusedRequest(400, "invalid_request", problem, param="input")
        message[REFERENCE] = item.turn
    elif item.type == "reasoning":
        parts = item.content if isinstance(item.content, list) and item.content else item.summary or []
        if thought := "".join(part.text for part in parts):
            message["reasoning_content"] = message.get("reasoning_content", "") + thought
    else:
        message["content"] += SentMessage(role="assistant", content=item.content).normal()["content"]


def _message(item: Item) -> ChatMessage:
    if item.type == "function_call_output":
        sent = SentMessage(role="tool", content=item.output, tool_call_id=item.call_id)
    elif item.type == "message" and item.role:
        sent = SentMessage(role=item.role, content=item.content)
    else:
        problem = f"input has an item of type {item.type[:40]!r}, expected messages, calls and their output"
        raise RefusedRequest(400, "unsupported_content", problem, param="input")
    return sent.normal()


# ── reply ─────────────────────────────────────────────────────────────────────────────────────


def whole(reply: Reply, request: ChatRequest, shown: Shown) -> bytes:
    """The whole response as JSON."""
    return msgspec.json.encode(_response(reply, request, _items(reply.choices[0], shown)))


def stream(reply: Reply, request: ChatRequest, shown: Shown) -> bytes:
    """The whole response as server-sent events."""
    items = _items(reply.choices[0], shown)
    begun = {**_response(reply, request, []), "status": "in_progress", "incomplete_details": None, "usage": None}
    done = _response(reply, request, items)
    events = [{"type": "response.created", "response": begun}, {"type": "response.in_progress", "response": begun}]
    for place, item in enumerate(items):
        events += _item_events(place, item)
    events.append({"type": f"response.{done['status']}", "response": done})
    return b"".join(event({**one, "sequence_number": number}, str(one["type"])) for number, one in enumerate(events))


refusal = chat.refusal


def broken(refused: RefusedRequest) -> bytes:
    """The event with which a stream ends that cannot be completed."""
    error = refusal(refused)["error"]  # OpenAI documents its fields in the event itself, and sends them in `error`
    return event({**error, "type": "error", "error": error, "sequence_number": 0}, "error")


def _response(reply: Reply, request: ChatRequest, items: list[dict[str, Any]]) -> dict[str, Any]:
    is_cut = reply.choices[0].finish_reason == "length"
    return {
        "id": f"{PREFIX}{reply.number}",
        "object": "response",
        "created_at": reply.created,
        "status": "incomplete" if is_cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": request.messages[0]["content"] if request.num_instructions else None,
        "max_output_tokens": request.max_tokens,
        "metadata": {},
        "model": reply.model,
        "output": items,
        "parallel_tool_calls": True,
        "previous_response_id": request.previous or None,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto" if request.reads_calls or not request.tools else "none",
        "tools": [_shown_tool(tool) for tool in msgspec.json.decode(request.tools or "[]")],
        "top_p": None,
        "truncation": "disabled",
        "usage": {
            "input_tokens": reply.num_prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": reply.num_written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.num_prompt + reply.num_written,
        },
        "user": None,
    }


def _shown_tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "strict": None, "parameters": None, "description": None, **tool["function"]}


def _items(choice: Choice, shown: Shown) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if choice.thought:
        content = [{"type": "reasoning_text", "text": choice.thought}]
        items.append({"id": f"rs_{choice.turn}", "type": "reasoning", "summary": [], "content": content})
    calls = choice.message.get("tool_calls") or ()
    if choice.content or not calls:
        status = "incomplete" if choice.finish_reason == "length" else "completed"
        text = {"type": "output_text", "text": choice.content, "annotations": [], "logprobs": _logprobs(choice, shown)}
        message = {"id": f"msg_{choice.turn}", "type": "message", "role": "assistant", "status": status}
        items.append({**message, "content": [text]})
    for place, call in enumerate(calls):
        item = {"id": f"fc_{choice.turn}_{place}", "type": "function_call", "status": "completed"}
        items.append({**item, "call_id": call["id"], **call["function"]})
    return items


def _logprobs(choice: Choice, shown: Shown) -> list[dict[str, Any]]:
    if shown.text is None:
        return []
    tokens = ((shown.text([token]), logprob) for token, logprob in zip(choice.token_ids, choice.logprobs, strict=True))
    return [
        {"token": token, "logprob": logprob, "bytes": chat.bytes_of(token) or [], "top_logprobs": []}
        for token, logprob in tokens
    ]


def _item_events(place: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Events of one item of the output: it is added, its text comes at once, it is done."""
    where = {"output_index": place, "item_id": item["id"]}
    begun = {**item, "status": "in_progress"} if "status" in item else {**item}
    emptied = "arguments" if item["type"] == "function_call" else "content"
    begun[emptied] = "" if emptied == "arguments" else []
    yield {"type": "response.output_item.added", "output_index": place, "item": begun}
    if item["type"] == "function_call":
        arguments = item["arguments"]
        yield {"type": "response.function_call_arguments.delta", **where, "delta": arguments}
        yield {"type": "response.function_call_arguments.done", **where, "name": item["name"], "arguments": arguments}
    else:
        (part,) = item["content"]
        kind, text = f"response.{part['type']}", {**where, "content_index": 0}
        logprobs = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
        empty = {**part, "text": "", **{key: [] for key in logprobs}}
        yield {"type": "response.content_part.added", **text, "part": empty}
        if part["text"]:
            yield {"type": f"{kind}.delta", **text, **logprobs, "delta": part["text"]}
        yield {"type": f"{kind}.done", **text, **logprobs, "text": part["text"]}
        yield {"type": "response.content_part.done", **text, "part": part}
    yield {"type": "response.output_item.done", "output_index": place, "item": item}
