"""
Body of ``POST /v1/chat/completions``: what is honoured, refused and ignored.

Sampling is the run's: a program that chose its own temperature would make the recorded log-probs those of another
distribution. What only asks for another one is ignored and named in a header; what promises the program something that
the policy would not keep, such as JSON of a schema, is refused.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from asyncrl.engine import ChatMessage
from asyncrl.foreign_text import whole

# ── refusal ───────────────────────────────────────────────────────────────────────────────────
# An answer other than 200, in the form of OpenAI's errors.


class RefusedRequest(Exception):
    """
    The request is not answered with a completion.

    Args:
        code: Short name of the cause, for programs.
        message: One sentence for people.
        param: Field of the request that is to blame.
        retry: Tells clients whether to try again; None leaves it to the status.
    """

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry: bool | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry = retry

    @property
    def body(self) -> bytes:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return msgspec.json.encode(
            {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
        )

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Header that OpenAI's clients obey before the status."""
        return [] if self.retry is None else [(b"x-should-retry", b"true" if self.retry else b"false")]


# ── messages ──────────────────────────────────────────────────────────────────────────────────
# Messages of a request in one form, whatever a client makes of them on their way back.
#
#     {"role": "assistant", "content": [{"type": "text", "text": " a ?"}], "refusal": null, "tool_calls": null}
#         ─▶ {"role": "assistant", "content": " a ?"}
#
# Fields that are null or empty are left out, parts of text are joined, arguments of calls are compact JSON with
# sorted keys. Whitespace, ids of calls and the order of everything else are kept: they are what the policy reads.

SORTED = msgspec.json.Encoder(order="sorted")


class ReplyPart(Struct):
    type: str
    text: str = ""
    refusal: str = ""


class Function(Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class ReplyCall(Struct):
    function: Function
    id: str | None = None
    type: Literal["function"] | None = None


class SentMessage(Struct):
    """A message as a client sends it. Fields that no chat template reads are not decoded."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ReplyPart] | None = None
    name: str | None = None
    tool_calls: list[ReplyCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def normal(self) -> ChatMessage:
        """
        The message as an episode compares and renders it.

        Raises:
            Refused: It has a part that is not text, or calls of tools in another role than the assistant's.
        """
        message: ChatMessage = {"role": "system" if self.role == "developer" else self.role, "content": self._text()}
        if self.tool_calls:
            if self.role != "assistant":
                raise RefusedRequest(
                    400, "invalid_messages", f"a message of {self.role} has tool_calls", param="messages"
                )
            message["tool_calls"] = [called(call.id or "", call.function) for call in self.tool_calls]
        for key in ("name", "tool_call_id", "reasoning_content"):
            if value := getattr(self, key):
                message[key] = value
        return message

    def _text(self) -> str:
        if not isinstance(self.content, list):
            return self.content or ""
        for part in self.content:
            if part.type not in ("text", "refusal", "input_text", "output_text"):
                message = f"messages has a part of type {part.type[:40]!r}: only text is supported"
                raise RefusedRequest(400, "unsupported_content", message, param="messages")
        return "".join(part.text or part.refusal for part in self.content)


def called(call_id: str, function: Function) -> dict[str, Any]:
    """A call of a tool in its one form."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": function.name, "arguments": compact(function.arguments)},
    }


def compact(arguments: str | dict[str, Any] | None) -> str:
    """Arguments as compact JSON with sorted keys; text that is no JSON as it is."""
    if not isinstance(arguments, str):
        return SORTED.encode(arguments or {}).decode()
    try:
        return SORTED.encode(msgspec.json.decode(arguments)).decode()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return arguments


def normal(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Messages of a prompt in the form that those of a request have."""
    return [msgspec.convert(message, SentMessage).normal() for message in messages]


def tools_key(tools: str) -> bytes:
    """Tools without whatever order their keys have; empty without tools."""
    return SORTED.encode(msgspec.json.decode(tools)) if tools else b""


# ── chat request ──────────────────────────────────────────────────────────────────────────────

MAX_CHOICES = 128
IGNORED = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
    "parallel_tool_calls", "reasoning_effort",
)  # fmt: skip
"""Fields that would change what is sampled, and do not."""
UNSUPPORTED = (
    "logit_bias", "functions", "function_call", "audio", "prediction", "web_search_options", "structured_outputs",
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "chat_template", "chat_template_kwargs",
    "continue_final_message", "echo", "prompt_logprobs", "best_of", "use_beam_search",
)  # fmt: skip
"""Fields that are refused unless they are null, false or empty."""

Number = float | None
Count = Annotated[int, Meta(ge=1, lt=1 << 53)]
Integer = Annotated[int, Meta(ge=-(1 << 63), lt=(1 << 63) - 1)]


class RequestTool(Struct):
    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Struct):
    function: RequestTool
    type: Literal["function"] = "function"


class StreamOptions(Struct):
    include_usage: bool | None = None


class ResponseFormat(Struct):
    type: str


class Body(Struct):
    """Known fields of a request; others are not decoded."""

    messages: Annotated[list[SentMessage], Meta(min_length=1)]
    model: str = ""
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


Identity = tuple[bytes, bytes, bool, int | None, int, int | None]


class ChatRequest(Struct, frozen=True, kw_only=True):
    """A valid request."""

    messages: list[ChatMessage]
    tools: str = ""
    """JSON list of the tools as sent; empty without tools."""
    tools_key: bytes = b""
    """See `messages.tools_key`."""
    reads_calls: bool = False
    """True if calls of tools in the reply are to be told apart from its text."""
    model: str = ""
    max_tokens: int | None = None
    n: int = 1
    seed: int | None = None
    """Never given to the engine: a request with another one is another request, so it is answered anew."""
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    token_ids: bool = False
    ignored: tuple[str, ...] = ()
    """Fields that had no effect."""

    def identity(self, seen: bytes) -> Identity:
        """A key that only the same request again has; ``seen`` is the hash of its messages."""
        return seen, self.tools_key, self.reads_calls, self.max_tokens, self.n, self.seed


TOOLS = msgspec.json.Decoder(list[Tool])
BODY = msgspec.json.Decoder(Body)


def read_request(raw: bytes, stop: Sequence[str]) -> ChatRequest:
    """
    Decode and check a request.

    Args:
        stop: Stop strings of the run.

    Raises:
        Refused: The body is no request, or asks for what an episode cannot give.
    """
    try:
        body = BODY.decode(_readable(raw))
        tools = f"[{','.join(bytes(tool).decode() for tool in body.tools)}]" if body.tools else ""
        if tools:
            TOOLS.decode(tools)
        key = tools_key(tools)
    except RecursionError:
        raise RefusedRequest(400, "invalid_json", "the body is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
        raise RefusedRequest(400, "invalid_request", f"the body is not a chat completion request: {error}") from None
    _refuse_unsupported(body, stop)
    limits = [limit for limit in (body.max_tokens, body.max_completion_tokens) if limit]
    return ChatRequest(
        messages=[message.normal() for message in body.messages],
        tools=tools,
        tools_key=key,
        reads_calls=bool(tools) and body.tool_choice != "none",
        model=body.model,
        max_tokens=min(limits) if limits else None,
        n=body.n or 1,
        seed=body.seed,
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        logprobs=bool(body.logprobs),
        token_ids=bool(body.return_token_ids),
        ignored=tuple(name for name in IGNORED if getattr(body, name) is not None),
    )


def _readable(raw: bytes) -> str:
    r"""
    The body as text, which msgspec alone would leave unchecked in unknown keys.

    Clients write a file name that is no UTF-8 as ``"\udcff"``, half a character, which becomes U+FFFD.
    """
    text = raw.decode()
    if r"\ud" not in text.lower():
        return text
    return whole(json.dumps(json.loads(text), ensure_ascii=False))


def _refuse_unsupported(body: Body, stop: Sequence[str]) -> None:
    for name in UNSUPPORTED:
        if getattr(body, name):
            raise _unsupported(name, f"{name} is not supported")
    if body.response_format and body.response_format.type != "text":
        raise _unsupported("response_format", "response_format must be text: replies are sampled without a grammar")
    if body.tool_choice not in (None, "auto", "none"):
        raise _unsupported(
            "tool_choice", "tool_choice must be auto or none: the policy decides whether it calls a tool"
        )
    if body.modalities not in (None, [], ["text"]):
        raise _unsupported("modalities", "modalities must be text")
    if body.add_generation_prompt is False:
        raise _unsupported("add_generation_prompt", "add_generation_prompt must be true: the policy writes a new turn")
    if body.top_logprobs:
        raise _unsupported("top_logprobs", "top_logprobs must be 0: log-probs are recorded of the sampled tokens alone")
    sent = [body.stop] if isinstance(body.stop, str) else body.stop
    if sent and set(sent) != set(stop):
        raise _unsupported("stop", f"stop must be that of the run (sampling.stop), which is {list(stop)}")


def _unsupported(param: str, message: str) -> RefusedRequest:
    return RefusedRequest(400, "unsupported_parameter", message, param=param)
