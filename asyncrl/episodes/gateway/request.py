"""
A request of an agent program, in the one form that all dialects are read into; what is not done, and what refused.

Sampling is the run's: a program that chose its own temperature would make the recorded log-probs those of another
distribution. What asks for another one is ignored. What asks for a form of the reply, such as JSON of a schema, is not
enforced: programs ask for it after a reply that was bad, and a refusal would fail the episode for what the policy wrote
(``environment.gateway_refuses`` brings it back). Each is named in a header. What nobody here can do is refused, unless
the operator lets it be ignored by name (``environment.gateway_ignores``): no reply of the policy makes a program ask.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from asyncrl.engine import IMAGE, ChatMessage
from asyncrl.foreign_text import whole
from asyncrl.messages.words import Unenforced

# ── refusal ───────────────────────────────────────────────────────────────────────────────────
# An answer other than 200, which each dialect writes in its own form.


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
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Header that OpenAI's clients obey before the status."""
        return [] if self.retry is None else [(b"x-should-retry", b"true" if self.retry else b"false")]


# ── messages ──────────────────────────────────────────────────────────────────────────────────
# Messages of a request in one form, whatever a client makes of them on their way back.
#
#     {"role": "assistant", "content": [{"type": "text", "text": " a ?"}], "refusal": null, "tool_calls": null}
#         ─▶ {"role": "assistant", "content": " a ?"}
#
# Fields that are null or empty are left out, parts of text are joined, pictures are parts with their data in base64,
# arguments of calls are compact JSON with sorted keys. Whitespace, ids of calls and the order of everything else are
# kept: they are what the policy reads.

SORTED = msgspec.json.Encoder(order="sorted")


class ImageUrl(Struct):
    url: str


class ReplyPart(Struct):
    type: str
    text: str = ""
    refusal: str = ""
    image_url: str | ImageUrl | None = None

    def normal(self) -> dict[str, Any]:
        """The part as text, or as a picture. Raises `RefusedRequest` if it is neither."""
        if self.type in ("text", "refusal", "input_text", "output_text"):
            return text_part(self.text or self.refusal)
        if self.type not in ("image_url", "input_image"):
            raise unsupported(f"messages has a part of type {self.type[:40]!r}: only text and pictures are read")
        return picture_part(self.image_url.url if isinstance(self.image_url, ImageUrl) else self.image_url or "")


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def picture_part(url: str) -> dict[str, Any]:
    """A picture as a part, from its ``data:`` URL. Raises `RefusedRequest` for any other: a rollout fetches nothing."""
    head, _, data = url.partition(",")
    if not (head.startswith("data:") and head.endswith(";base64")):
        raise unsupported(
            f"messages has a picture at {url[:40]!r}: a rollout fetches none; send its file as "
            "data:image/png;base64,..."
        )
    return {"type": IMAGE, "data": data}


def unsupported(problem: str) -> RefusedRequest:
    return RefusedRequest(400, "unsupported_content", problem, param="messages")


def content_of(parts: Iterable[dict[str, Any]], role: str) -> str | list[dict[str, Any]]:
    """
    Content in its one form: a text, or texts and pictures, of which no two texts stand in a row.

    Raises `RefusedRequest` for a picture that the assistant is to have said.
    """
    told: list[dict[str, Any]] = []
    for part in parts:
        if part["type"] == IMAGE or not told or told[-1]["type"] == IMAGE:
            told.append(part)
        else:
            told[-1] = text_part(told[-1]["text"] + part["text"])
    told = [part for part in told if part.get("text", IMAGE)]
    if all(part["type"] == "text" for part in told):
        return told[0]["text"] if told else ""
    if role == "assistant":
        raise unsupported("messages has a picture of the assistant, which writes only text")
    return told


def num_chars(message: ChatMessage) -> int:
    """Characters of a message's content, without its pictures."""
    content = message["content"]
    return len(content) if isinstance(content, str) else sum(len(part.get("text", "")) for part in content)


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
    reasoning: str | None = None
    """Another name of the thought."""

    def normal(self) -> ChatMessage:
        """
        The message as an episode compares and renders it.

        Raises:
            Refused: It has a part that is neither text nor a picture, or calls of tools in another role than the
                assistant's.
        """
        message: ChatMessage = {"role": "system" if self.role == "developer" else self.role, "content": self._content()}
        if self.tool_calls:
            if self.role != "assistant":
                raise RefusedRequest(
                    400, "invalid_messages", f"a message of {self.role} has tool_calls", param="messages"
                )
            message["tool_calls"] = [called(call.id or "", call.function) for call in self.tool_calls]
        if self.name:
            message["name"] = self.name
        if self.tool_call_id:
            message["tool_call_id"] = self.tool_call_id
        if thought := self.reasoning_content or self.reasoning:
            message["reasoning_content"] = thought
        return message

    def _content(self) -> str | list[dict[str, Any]]:
        if not isinstance(self.content, list):
            return self.content or ""
        return content_of((part.normal() for part in self.content), self.role)


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


# ── request ───────────────────────────────────────────────────────────────────────────────────

MAX_CHOICES = 128
MAX_STOPS, MAX_STOP_CHARS = 16, 256
"""Most stop strings of a request, and characters of one: each is looked for after every token."""
MAX_TOOLS_CHARS = 256 << 10
"""Characters of a request's tools: their schemas are kept as long as the rollout runs."""
MAX_DEPTH = 64
"""Nesting of a tool's schema."""
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
    "reasoning_effort",
)  # fmt: skip
"""Fields that would change what is sampled, and do not, in any dialect."""

ModelName = Annotated[str, Meta(max_length=256)]
"""Name of a model, which replies repeat."""
Number = float | None
Count = Annotated[int, Meta(ge=1, lt=1 << 53)]
Integer = Annotated[int, Meta(ge=-(1 << 63), lt=(1 << 63) - 1)]


class RequestTool(Struct, omit_defaults=True):
    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Struct, kw_only=True):
    """A tool in OpenAI's form, which chat templates show."""

    type: Literal["function"] = "function"
    function: RequestTool


class ChatRequest(Struct, frozen=True, kw_only=True):
    """A valid request of any dialect."""

    messages: list[ChatMessage]
    tools: str = ""
    """JSON list of the tools as sent; empty without tools."""
    tools_key: bytes = b""
    """See `tools_key`."""
    reads_calls: bool = False
    """True if calls of tools in the reply are to be told apart from its text."""
    model: str = ""
    max_tokens: int | None = None
    n: int = 1
    seed: int | None = None
    """Never given to the engine: a request with another one is another request, so it is answered anew."""
    stop: tuple[str, ...] = ()
    """Texts before which the delivered reply ends, besides those of the run."""
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    token_ids: bool = False
    shows_thoughts: bool = True
    """True if the client reads thoughts; others would take them for the answer."""
    num_instructions: int = 0
    """Messages at the beginning that belong to this request alone, and are not kept for ``previous``."""
    previous: str = ""
    """Id of the reply whose conversation this request continues; empty if it has sent all of it."""
    ignored: tuple[str, ...] = ()
    """Fields that had no effect."""
    unenforced: tuple[Unenforced, ...] = ()
    """Forms of the reply that were asked for, and that nothing enforces."""
    seat: int = 0
    """Seat of the episode that is to speak."""

    def identity(self, seen: bytes) -> bytes:
        """A hash that only the same request again has; ``seen`` is the hash of its messages."""
        rest = (self.reads_calls, self.max_tokens, self.n, self.seed, self.stop, self.seat)
        return sha256(b"%s\0%s\0%s" % (seen, SORTED.encode(rest), self.tools_key)).digest()


REFERENCE = "reference"
"""Key of a message that only names a turn, whose reply stands for it."""
IDS = re.compile(r"(?:chatcmpl-|resp_|msg_|rs_)(\d{1,9})|(?:fc|call)_(\d{1,9})_\d+", re.ASCII)
"""Ids of what is delivered, in all dialects."""


def turn_of(name: str) -> int:
    """Turn that an id names: of a completion, a response, a message, an item or a call; -1 for any other text."""
    found = IDS.fullmatch(name)
    return int(found[1] or found[2]) if found else -1


class Wishes:
    """
    Fields of a request that ask for something else than the policy's own distribution.

    Args:
        allowed: Fields that the operator lets be ignored: ``environment.gateway_ignores``.
        refused: Forms that the operator has refused: ``environment.gateway_refuses``.
    """

    def __init__(self, allowed: Collection[str] = (), refused: Collection[Unenforced] = ()) -> None:
        self._allowed = allowed
        self._refused = refused
        self._ignored: dict[str, None] = {}
        self._unenforced: dict[Unenforced, None] = {}

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields that have no effect, each once."""
        return tuple(self._ignored)

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        """Forms of the reply that nothing enforces, each once."""
        return tuple(self._unenforced)

    def ignore(self, *names: str) -> None:
        """Name fields that have no effect."""
        self._ignored.update(dict.fromkeys(names))

    def ask(self, name: Unenforced, wanted: object) -> None:
        """Name a form that is asked for, if ``wanted`` is true; raises `RefusedRequest` if the operator has it so."""
        if not wanted:
            return
        if name in self._refused:
            problem = (
                f"{name} is not enforced: replies are sampled without a grammar, whose masks the engine would have to "
                f"record for the trainer; without {name!r} in environment.gateway_refuses the request is answered"
            )
            raise RefusedRequest(400, "unsupported_parameter", problem, param=name)
        self._unenforced[name] = None

    def refuse(self, name: str, problem: str) -> None:
        """Raise `RefusedRequest`, unless the operator lets the field be ignored."""
        if name not in self._allowed:
            raise RefusedRequest(
                400,
                "unsupported_parameter",
                f"{problem}; environment.gateway_ignores = [{name!r}] answers as if it were not asked",
                param=name,
            )
        self.ignore(name)

    def refuse_all(self, body: object, names: Sequence[str]) -> None:
        """Refuse each of these fields of the body that has a value other than null, false or empty."""
        for name in names:
            if getattr(body, name):
                self.refuse(name, f"{name} is not supported")

    def reads_calls(self, choice: str | Mapping[str, Any] | None, *, has_tools: bool) -> bool:
        """True if the reply may have calls. A choice other than ``auto`` and ``none`` is not enforced."""
        kind = choice.get("type") if isinstance(choice, Mapping) else choice
        self.ask("tool_choice", kind not in (None, "auto", "none"))
        return has_tools and kind != "none"

    def is_function(self, kind: str) -> bool:
        """True for a tool of this type that the policy may call; another type is refused or ignored."""
        if kind != "function":
            self.refuse("tools", f"tools has one of type {kind:.40}, and only functions can be called")
        return kind == "function"

    def stops(self, sent: str | Sequence[str] | None) -> tuple[str, ...]:
        """Stop strings of a request."""
        stops = (sent,) if isinstance(sent, str) else tuple(sent or ())
        if len(stops) > MAX_STOPS or not all(0 < len(stop) <= MAX_STOP_CHARS for stop in stops):
            raise RefusedRequest(
                400,
                "invalid_request",
                f"stop must be at most {MAX_STOPS} texts of 1 to {MAX_STOP_CHARS} characters",
                param="stop",
            )
        return tuple(dict.fromkeys(stops))


TOOLS = msgspec.json.Decoder(list[Tool])


def checked_tools(tools: str) -> tuple[str, bytes]:
    """A JSON list of tools, and its `tools_key`. Raises `RefusedRequest` if one has not OpenAI's form."""
    if not tools:
        return "", b""
    problem = ""
    if len(tools) > MAX_TOOLS_CHARS:
        problem = f"they have {len(tools)} characters, expected at most {MAX_TOOLS_CHARS}"
    try:
        if not problem and depth_of(TOOLS.decode(tools)) > MAX_DEPTH:
            problem = f"a schema is nested more than {MAX_DEPTH} deep"
    except (msgspec.MsgspecError, RecursionError) as error:
        problem = str(error)
    if problem:
        sentence = f"the tools of the request cannot be read: {problem}"
        raise RefusedRequest(400, "invalid_request", sentence, param="tools")
    return tools, tools_key(tools)


def offered(functions: Iterable[RequestTool]) -> str:
    """The functions that a request offers, as a JSON list of tools; empty without any."""
    tools = [Tool(function=function) for function in functions]
    return msgspec.json.encode(tools).decode() if tools else ""


def depth_of(tools: Sequence[Tool]) -> int:
    """Nesting of the deepest schema."""
    level: list[Any] = [tool.function.parameters for tool in tools]
    depth = 0
    while level := [value for value in level if isinstance(value, (dict, list))]:
        level = [inner for value in level for inner in (value.values() if isinstance(value, dict) else value)]
        depth += 1
    return depth


Decoded = TypeVar("Decoded")


def decoded(raw: bytes, decode: Callable[[str], Decoded], what: str) -> Decoded:
    """The body as ``decode`` gives it. Raises `RefusedRequest` if it is not ``what``."""
    try:
        return decode(_readable(raw))
    except RecursionError:
        raise RefusedRequest(400, "invalid_json", "the body is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
        raise RefusedRequest(400, "invalid_request", f"the body is not {what}: {error}") from None


def _readable(raw: bytes) -> str:
    r"""
    The body as text, which msgspec alone would leave unchecked in unknown keys.

    Clients write a file name that is no UTF-8 as ``"\udcff"``, half a character, which becomes U+FFFD.
    """
    text = raw.decode()
    if r"\ud" not in text and r"\uD" not in text:
        return text
    return whole(json.dumps(json.loads(text), ensure_ascii=False))
