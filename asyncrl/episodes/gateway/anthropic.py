"""
``POST /v1/messages``: requests and replies as Anthropic's messages, whole or as a stream of events.

    thinking, text, tool_use (blocks of the assistant)  ◀─▶  one message: its thought, its text, its calls
    tool_result (block of the user)                     ─▶   a message of the tool
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from asyncrl.engine import ChatMessage
from asyncrl.episodes.gateway.reply import Choice, Reply, Shown, event
from asyncrl.episodes.gateway.request import (
    ChatRequest,
    Count,
    Function,
    ModelName,
    Number,
    RefusedRequest,
    RequestTool,
    Wishes,
    called,
    checked_tools,
    content_of,
    decoded,
    offered,
    picture_part,
    text_part,
    unsupported,
)

# ── request ───────────────────────────────────────────────────────────────────────────────────

IGNORED = ("temperature", "top_p", "top_k", "service_tier", "context_management")
"""Fields that would change what is sampled, and do not."""
UNSUPPORTED = ("mcp_servers", "container")
"""Fields that are refused unless they are null or empty, or the operator lets them be ignored."""


class ContentBlock(Struct):
    """A block of content; which fields it has depends on its type."""

    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] | None = None
    tool_use_id: str = ""
    content: "str | list[ContentBlock] | None" = None
    source: "Source | None" = None


class Source(Struct):
    """Place of a picture's file."""

    type: str
    media_type: str = ""
    data: str = ""
    url: str = ""


class AnthropicMessage(Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class Thinking(Struct):
    type: str


class AnthropicTool(Struct):
    name: Annotated[str, Meta(min_length=1)]
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class OutputConfig(Struct):
    format: Any = None
    effort: str | None = None


class MessagesBody(Struct):
    """Known fields of a request; others are not decoded."""

    messages: Annotated[list[AnthropicMessage], Meta(min_length=1)]
    max_tokens: Count | None = None
    model: ModelName = ""
    system: str | list[ContentBlock] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    thinking: Thinking | None = None

    temperature: Number = None
    top_p: Number = None
    top_k: Number = None
    service_tier: str | None = None
    output_config: OutputConfig | None = None
    context_management: Any = None

    mcp_servers: Any = None
    container: Any = None
    output_format: Any = None


BODY = msgspec.json.Decoder(MessagesBody)
OURS: dict[str | None, str] = {None: "function", "custom": "function"}
"""Types of tools that a client runs, under OpenAI's name."""
BILLING = "x-anthropic-billing-header:"
"""Beginning of a block that a client puts before its system message, another one in each request."""
CHOICES = {"any": "required", "tool": "function"}
"""Choices of a tool under OpenAI's names."""


def read(raw: bytes, wishes: Wishes) -> ChatRequest:
    """Decode and check a request. Raises `RefusedRequest`."""
    body = decoded(raw, BODY.decode, "a request for a message")
    wishes.ignore(*(name for name in IGNORED if getattr(body, name) is not None))
    wishes.refuse_all(body, UNSUPPORTED)
    wishes.ask("response_format", body.output_format or (body.output_config and body.output_config.format))
    if body.output_config and body.output_config.effort:
        wishes.ignore("output_config.effort")
    wishes.ask("prefill", body.messages[-1].role == "assistant")
    functions = [tool for tool in body.tools or () if wishes.is_function(OURS.get(tool.type, tool.type or ""))]
    wishes.ask("parallel_tool_calls", (body.tool_choice or {}).get("disable_parallel_tool_use"))
    wishes.ask("strict", any(tool.strict for tool in functions))
    offers = (RequestTool(tool.name, tool.description, tool.input_schema) for tool in functions)
    tools, key = checked_tools(offered(offers))
    choice = (body.tool_choice or {}).get("type")
    system: list[ChatMessage] = [{"role": "system", "content": text}] if (text := _system(body.system)) else []
    return ChatRequest(
        messages=[*system, *(message for sent in body.messages for message in _messages(sent))],
        tools=tools,
        tools_key=key,
        reads_calls=wishes.reads_calls(CHOICES.get(str(choice), choice), has_tools=bool(tools)),
        model=body.model,
        max_tokens=body.max_tokens,
        stop=wishes.stops(body.stop_sequences),
        stream=bool(body.stream),
        shows_thoughts=bool(body.thinking and body.thinking.type != "disabled"),
        ignored=wishes.ignored,
        unenforced=wishes.unenforced,
    )


def _system(system: str | Sequence[ContentBlock] | None) -> str:
    if isinstance(system, Sequence) and not isinstance(system, str):
        system = [block for block in system if not block.text.startswith(BILLING)]
    content = _content(system, "system")
    if not isinstance(content, str):
        raise unsupported("system has a picture: show it in a message of the user")
    return content


def _messages(sent: AnthropicMessage) -> Iterator[ChatMessage]:
    if isinstance(sent.content, str):
        yield {"role": sent.role, "content": sent.content}
    elif sent.role == "assistant":
        yield _of_assistant(sent.content)
    else:
        yield from _of_user(sent.role, sent.content)


def _of_assistant(blocks: Sequence[ContentBlock]) -> ChatMessage:
    spoken = [one for one in blocks if one.type not in APART]
    message: ChatMessage = {"role": "assistant", "content": _content(spoken, "assistant")}
    if thought := "".join(block.thinking for block in blocks if block.type == "thinking"):
        message["reasoning_content"] = thought
    if calls := [called(block.id, Function(block.name, block.input)) for block in blocks if block.type == "tool_use"]:
        message["tool_calls"] = calls
    return message


APART = ("thinking", "redacted_thinking", "tool_use")
"""Blocks of the assistant that are no text of its answer."""


def _of_user(role: str, blocks: Sequence[ContentBlock]) -> Iterator[ChatMessage]:
    """Results of tools, each a message, and the texts and pictures between them."""
    texts: list[ContentBlock] = []
    for block in blocks:
        if block.type != "tool_result":
            texts.append(block)
            continue
        if texts:
            yield {"role": role, "content": _content(texts, role)}
            texts = []
        yield {"role": "tool", "content": _content(block.content, "tool"), "tool_call_id": block.tool_use_id}
    if texts:
        yield {"role": role, "content": _content(texts, role)}


def _content(content: str | Sequence[ContentBlock] | None, role: str) -> str | list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return content or ""
    return content_of(map(_part, content), role)


def _part(block: ContentBlock) -> dict[str, Any]:
    if block.type == "text":
        return text_part(block.text)
    if block.type != "image" or block.source is None:
        problem = f"messages has a block of type {block.type[:40]!r}"
        raise unsupported(f"{problem}: only text, pictures, tool calls and thoughts are read")
    source = block.source
    return picture_part(f"data:{source.media_type};base64,{source.data}" if source.type == "base64" else source.url)


# ── reply ─────────────────────────────────────────────────────────────────────────────────────

ERRORS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 413: "request_too_large"}
"""Anthropic's names of errors by status; all others are ``api_error``."""
REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


def whole(reply: Reply, request: ChatRequest, shown: Shown) -> bytes:
    """The whole message as JSON."""
    choice = reply.choices[0]
    ended = {"content": _blocks(choice, request), **_end(choice)}
    return msgspec.json.encode({**_head(reply), **ended, "usage": _usage(reply, reply.num_written)})


def stream(reply: Reply, request: ChatRequest, shown: Shown) -> bytes:
    """The whole message as server-sent events."""
    choice = reply.choices[0]
    begun = {**_head(reply), "content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(reply, 0)}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for place, block in enumerate(_blocks(choice, request)):
        events += _block_events(place, block)
    events.append({"type": "message_delta", "delta": _end(choice), "usage": _usage(reply, reply.num_written)})
    events.append({"type": "message_stop"})
    return b"".join(event(one, one["type"]) for one in events)


def refusal(refused: RefusedRequest) -> dict[str, Any]:
    """Anthropic's form of an error."""
    error = {"type": ERRORS.get(refused.status, "api_error"), "message": refused.message, "code": refused.code}
    return {"type": "error", "error": error}


def broken(refused: RefusedRequest) -> bytes:
    """The event with which a stream ends that cannot be completed."""
    return event(refusal(refused), "error")


def _head(reply: Reply) -> dict[str, Any]:
    return {"id": f"msg_{reply.number}", "type": "message", "role": "assistant", "model": reply.model}


def _end(choice: Choice) -> dict[str, Any]:
    ended = "stop_sequence" if choice.stopped_by else "end_turn"
    return {"stop_reason": REASONS.get(choice.finish_reason, ended), "stop_sequence": choice.stopped_by or None}


def _usage(reply: Reply, num_written: int) -> dict[str, int]:
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": reply.num_prompt, "output_tokens": num_written, **cached}


def _blocks(choice: Choice, request: ChatRequest) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if choice.thought and request.shows_thoughts:
        blocks.append({"type": "thinking", "thinking": choice.thought, "signature": f"turn_{choice.turn}"})
    calls = choice.message.get("tool_calls") or ()
    if choice.content or not calls:
        blocks.append({"type": "text", "text": choice.content})
    for call in calls:
        function = call["function"]
        arguments = msgspec.json.decode(function["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    return blocks


def _block_events(place: int, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Events of one block: it begins empty, its content comes at once, it stops."""
    deltas: list[dict[str, Any]]
    match block["type"]:
        case "text":
            begun = {**block, "text": ""}
            deltas = [{"type": "text_delta", "text": block["text"]}] if block["text"] else []
        case "thinking":
            begun = {**block, "thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case _:
            begun = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": msgspec.json.encode(block["input"]).decode()}]
    yield {"type": "content_block_start", "index": place, "content_block": begun}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": place, "delta": delta}
    yield {"type": "content_block_stop", "index": place}
