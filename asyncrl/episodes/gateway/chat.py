"""``POST /v1/chat/completions``: requests and replies as OpenAI's chat completions, whole or as a stream of chunks."""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from asyncrl.episodes.gateway.reply import Choice, Reply, Shown, Text, event
from asyncrl.episodes.gateway.request import (
    MAX_CHOICES,
    SAMPLING,
    ChatRequest,
    Count,
    Integer,
    ModelName,
    Number,
    RefusedRequest,
    SentMessage,
    Wishes,
    checked_tools,
    decoded,
)
from asyncrl.messages.words import Unenforced

# ── request ───────────────────────────────────────────────────────────────────────────────────

UNSUPPORTED = (
    "logit_bias", "functions", "function_call", "audio", "prediction", "web_search_options", "chat_template",
    "chat_template_kwargs", "continue_final_message", "echo", "prompt_logprobs", "best_of", "use_beam_search",
)  # fmt: skip
"""Fields that are refused unless they are null, false or empty, or the operator lets them be ignored."""
GUIDED: tuple[Unenforced, ...] = (
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
)  # fmt: skip
"""Forms of the reply under vLLM's names."""


class StreamOptions(Struct):
    include_usage: bool | None = None


class ResponseFormat(Struct):
    type: str


class ChatBody(Struct):
    """Known fields of a request; others are not decoded."""

    messages: Annotated[list[SentMessage], Meta(min_length=1)]
    model: ModelName = ""
    tools: list[msgspec.Raw] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    seed: Integer | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    return_token_ids: bool | None = None
    add_generation_prompt: bool | None = None
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None

    temperature: Number = None
    top_p: Number = None
    top_k: Number = None
    min_p: Number = None
    frequency_penalty: Number = None
    presence_penalty: Number = None
    repetition_penalty: Number = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None

    logit_bias: Any = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    continue_final_message: Any = None
    echo: Any = None
    prompt_logprobs: Any = None
    best_of: Any = None
    use_beam_search: Any = None


class StrictFunction(Struct):
    strict: bool | None = None


class AnyTool(Struct):
    type: str = "function"
    function: StrictFunction | None = None


BODY = msgspec.json.Decoder(ChatBody)


def read(raw: bytes, wishes: Wishes) -> ChatRequest:
    """
    Decode and check a request.

    Raises:
        RefusedRequest: The body is no request, or asks for what an episode cannot give.
    """

    def decode(text: str) -> tuple[ChatBody, list[tuple[msgspec.Raw, AnyTool]]]:
        body = BODY.decode(text)
        return body, [(tool, msgspec.json.decode(tool, type=AnyTool)) for tool in body.tools or ()]

    body, offered = decoded(raw, decode, "a chat completion request")
    functions = [bytes(tool).decode() for tool, kind in offered if wishes.is_function(kind.type)]
    tools, key = checked_tools(f"[{','.join(functions)}]" if functions else "")
    wishes.ignore(*(name for name in SAMPLING if getattr(body, name) is not None))
    wishes.refuse_all(body, UNSUPPORTED)
    wishes.ask("response_format", body.response_format and body.response_format.type != "text")
    wishes.ask("parallel_tool_calls", body.parallel_tool_calls is False)
    wishes.ask("strict", any(tool.function and tool.function.strict for _, tool in offered))
    for name in GUIDED:
        wishes.ask(name, getattr(body, name))
    if body.top_logprobs:
        wishes.refuse("top_logprobs", "top_logprobs must be 0: log-probs are recorded of the sampled tokens alone")
    if body.modalities not in (None, [], ["text"]):
        wishes.refuse("modalities", "modalities must be text")
    if body.add_generation_prompt is False:
        raise RefusedRequest(
            400,
            "unsupported_parameter",
            "add_generation_prompt must be true: the policy writes a new turn",
            param="add_generation_prompt",
        )
    limits = [limit for limit in (body.max_tokens, body.max_completion_tokens) if limit]
    return ChatRequest(
        messages=[message.normal() for message in body.messages],
        tools=tools,
        tools_key=key,
        reads_calls=wishes.reads_calls(body.tool_choice, has_tools=bool(tools)),
        model=body.model,
        max_tokens=min(limits) if limits else None,
        n=body.n or 1,
        seed=body.seed,
        stop=wishes.stops(body.stop),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        logprobs=bool(body.logprobs),
        token_ids=bool(body.return_token_ids),
        ignored=wishes.ignored,
        unenforced=wishes.unenforced,
    )


# ── reply ─────────────────────────────────────────────────────────────────────────────────────

LAST_EVENT = b"data: [DONE]\n\n"


def whole(reply: Reply, request: ChatRequest, shown: Shown) -> bytes:
    """The whole answer as JSON."""
    choices = [
        {
            "index": index,
            "message": {**choice.message, "content": _content(choice), "refusal": None},
            "finish_reason": choice.finish_reason,
            "logprobs": None if shown.text is None else _logprobs(choice, shown.text),
            **({} if shown.prompt_ids is None else {"token_ids": choice.token_ids}),
        }
        for index, choice in enumerate(reply.choices)
    ]
    extra = {} if shown.prompt_ids is None else {"prompt_token_ids": shown.prompt_ids}
    body = {**_head(reply, "chat.completion"), "choices": choices, "usage": _usage(reply), **extra}
    return msgspec.json.encode(body)


def stream(reply: Reply, request: ChatRequest, shown: Shown) -> bytes:
    """The whole answer as server-sent events, the last one included."""
    head = _head(reply, "chat.completion.chunk") | ({"usage": None} if shown.usage else {})
    lines = []
    for index, choice in enumerate(reply.choices):
        for number, part in enumerate(_parts(choice, shown)):
            extra = {} if shown.prompt_ids is None or index or number else {"prompt_token_ids": shown.prompt_ids}
            lines.append(event({**head, "choices": [{"index": index, **part}], **extra}))
    if shown.usage:
        lines.append(event({**head, "choices": [], "usage": _usage(reply)}))
    return b"".join([*lines, LAST_EVENT])


def refusal(refused: RefusedRequest) -> dict[str, Any]:
    """OpenAI's form of an error."""
    kind = "server_error" if refused.status >= 500 else "invalid_request_error"
    return {"error": {"message": refused.message, "type": kind, "param": refused.param, "code": refused.code}}


def broken(refused: RefusedRequest) -> bytes:
    """The event with which a stream ends that cannot be completed."""
    return event(refusal(refused))


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    named = {"id": f"chatcmpl-{reply.number}", "object": kind, "created": reply.created, "model": reply.model}
    return {**named, "system_fingerprint": None}


def _usage(reply: Reply) -> dict[str, int]:
    prompt, written = reply.num_prompt, reply.num_written
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def _content(choice: Choice) -> str | None:
    """Null beside calls without text, as OpenAI has it."""
    return choice.content or (None if choice.message.get("tool_calls") else "")


def _parts(choice: Choice, shown: Shown) -> list[dict[str, Any]]:
    """Chunks of a choice, one for each delta; facts of its tokens stand beside the one that follows its role."""
    parts: list[dict[str, Any]] = [
        {"delta": delta, "finish_reason": None, "logprobs": None} for delta in (*_deltas(choice), {})
    ]
    if shown.text is not None:
        parts[1]["logprobs"] = _logprobs(choice, shown.text)
    if shown.prompt_ids is not None:
        parts[1]["token_ids"] = choice.token_ids
    parts[-1]["finish_reason"] = choice.finish_reason
    return parts


def _deltas(choice: Choice) -> Iterator[dict[str, Any]]:
    """Role, thought, words, each call and its arguments: one thing each, because clients read no other beside it."""
    yield {"role": "assistant", "content": None if _content(choice) is None else "", "refusal": None}
    if choice.thought:
        yield {"reasoning_content": choice.thought}
    if choice.content:
        yield {"content": choice.content}
    for place, call in enumerate(choice.message.get("tool_calls") or ()):
        name, arguments = {**call["function"], "arguments": ""}, {"arguments": call["function"]["arguments"]}
        yield {"tool_calls": [{"index": place, **call, "function": name}]}
        yield {"tool_calls": [{"index": place, "function": arguments}]}


def _logprobs(choice: Choice, text: Text) -> dict[str, Any]:
    tokens = [text([token]) for token in choice.token_ids]
    content = [
        {"token": token, "logprob": logprob, "bytes": bytes_of(token), "top_logprobs": []}
        for token, logprob in zip(tokens, choice.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def bytes_of(token: str) -> list[int] | None:
    """Bytes of a token; null where its text alone does not tell them, as of a part of a character."""
    return None if "\ufffd" in token else list(token.encode())
