"""
A policy, a chat template and a client without a model or a socket.

The turn boundary has one token for each character. Characters that the policy samples have other ids than the same
characters in context, as a tokenizer may well give: an id of the policy that was decoded and encoded again would show.
"""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from asyncrl.engine import CalledTool, ChatMessage, Completion, PolicyTurn, Request, TurnBoundary
from asyncrl.episodes.conversation import Conversation, Sample
from asyncrl.episodes.gateway.episode import OpenEpisode
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.episodes.pictures import EpisodePictures
from asyncrl.episodes.record import EpisodeLimits, EpisodeRecord
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import Sampling, Span
from asyncrl.messages.words import FinishReason

END, START = 1, 2
SPECIAL = {END: "<|im_end|>", START: "<|im_start|>"}
SAMPLED = 1 << 21
"""Distance of a sampled character's id from that of the same character in context."""
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
NO_LIMITS = EpisodeLimits(max_turns=1000, max_tokens=1_000_000)

Policy = Callable[[str], str]
"""Text of a turn, from all that was read before it."""


class CharBoundary:
    """ChatML of characters; calls of tools in Hermes' form."""

    def after(self, messages: Sequence[ChatMessage], last_ids: Sequence[int]) -> list[int]:
        if any(message["role"] in ("assistant", "system") for message in messages):
            raise EngineError("the template takes no message of this role here", retryable=False)
        return [*([] if last_ids[-1] == END else [END]), ord("\n"), *_rendered(messages)]

    def opening(self, messages: Sequence[ChatMessage], tools: str = "") -> list[int]:
        about_tools: list[ChatMessage] = [{"role": "tools", "content": tools}] if tools else []
        return _rendered([*about_tools, *messages])

    def said(self, token_ids: Sequence[int], finish_reason: FinishReason, tools: str = "") -> PolicyTurn:
        text = self.text(token_ids)
        calls = [_call(match) for match in CALL.findall(text)]
        content = CALL.sub(lambda match: match[0] if _call(match[1]).problem else "", text)
        return PolicyTurn(text=text, content=content, tool_calls=calls, finish_reason=finish_reason)

    def message(self, token_ids: Sequence[int]) -> ChatMessage:
        return {"role": "assistant", "content": self.text(token_ids)}

    def quoted(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        return list(messages)

    def retold(self, messages: Sequence[ChatMessage], read_ids: Sequence[int], tools: str = "") -> list[int] | None:
        told = self.opening(messages, tools)
        return None if told == list(read_ids) else told

    def text(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token % SAMPLED) for token in token_ids if token not in SPECIAL)


class ThinkingBoundary(CharBoundary):
    """Sets apart what stands between the tags of a thought."""

    def said(self, token_ids: Sequence[int], finish_reason: FinishReason, tools: str = "") -> PolicyTurn:
        said = super().said(token_ids, finish_reason, tools)
        thought, _, content = said.content.rpartition("</think>")
        return replace(said, content=content.strip(), thought=thought.removeprefix("<think>"))


def shown(token_ids: Sequence[int]) -> str:
    """Text of tokens with special ones."""
    return "".join(SPECIAL.get(token) or chr(token % SAMPLED) for token in token_ids)


def sampled(text: str, *, ends: bool = True) -> list[int]:
    return [SAMPLED + ord(char) for char in text] + [END] * ends


def _rendered(messages: Sequence[ChatMessage]) -> list[int]:
    ids: list[int] = []
    for message in messages:
        calls = "".join(json.dumps(call["function"]) for call in message.get("tool_calls", ()))
        ids += [START, *map(ord, f"{message['role']}\n{_content(message)}{calls}"), END, ord("\n")]
    return [*ids, START, *map(ord, "assistant\n")]


PICTURE = "\ue000"
"""Character of a picture, whatever it shows."""


def _content(message: ChatMessage) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(PICTURE if part["type"] == "image" else part["text"] for part in content)


def _call(text: str) -> CalledTool:
    try:
        call = msgspec.json.decode(text)
        return CalledTool(name=call["name"], arguments=call["arguments"])
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        return CalledTool(name="", arguments={}, problem=str(error) or "no call")


class CharEngine:
    """Samples what a function says; holds requests back while ``may_write`` is cleared."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.requests: list[Request] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.error: Exception | None = None

    async def sample(self, request: Request) -> Completion:
        self.requests.append(request)
        await self.may_write.wait()
        if self.error:
            raise self.error
        begun = request.resume_from.completion_ids if request.resume_from else []
        ids = sampled(self._policy(shown(request.prompt_ids)))
        assert ids[: len(begun)] == begun, "another turn is continued"
        made = completion(ids[: request.sampling.max_tokens], is_cut=len(ids) > request.sampling.max_tokens)
        return replace(made, grids=[(1, 2, 2)] * len(request.images))


def completion(ids: list[int], *, is_cut: bool = False) -> Completion:
    return Completion(
        completion_ids=ids,
        behavior_logprobs=[-0.5] * len(ids),
        spans=[Span(0, 0, len(ids))],
        finish_reason="length" if is_cut else "stop",
        generate_s=0.0,
    )


class Episode:
    """An episode that is open in a gateway of its own."""

    def __init__(
        self,
        policy: Policy,
        prompt: Sequence[ChatMessage] = ({"role": "user", "content": "Hi"},),
        *,
        tools: str = "",
        limits: EpisodeLimits = NO_LIMITS,
        max_tokens: int = 100,
        gateway: Gateway | None = None,
        earlier: EpisodeRecord | None = None,
        boundary: TurnBoundary | None = None,
        sample: Sample | None = None,
        pictures: EpisodePictures | None = None,
    ) -> None:
        self.gateway = gateway or Gateway("http://test", clock=lambda: 1.7e9)
        self.engine = CharEngine(policy)
        self.boundary = boundary or CharBoundary()
        own = pictures or EpisodePictures(limits.pictures)
        self.record = EpisodeRecord(self.boundary.opening(own.with_prompt(prompt), tools), images=own.prompt)
        self.conversation = Conversation(
            self.record,
            sample or self.engine.sample,
            self.boundary,
            sampling=Sampling(max_tokens=max_tokens),
            limits=limits,
            seed=1,
            pictures=own,
        )
        self.open: OpenEpisode = self.gateway.open(
            self.conversation, prompt, tools, earlier=earlier.turns if earlier else ()
        )
        self.path = f"/e/{self.open.key}"


class Answer:
    def __init__(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def message(self) -> dict[str, Any]:
        return self.json["choices"][0]["message"]

    @property
    def code(self) -> str:
        return self.json["error"]["code"]


class Connection:
    """One exchange with an ASGI app, whose client may go away."""

    def __init__(self, app: Any, method: str, path: str, body: bytes = b"", headers: Sequence[Any] = ()) -> None:
        self._scope = {
            "type": "http", "method": method, "path": path, "headers": list(headers), "query_string": b"",
        }  # fmt: skip
        self._app = app
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self.sent: list[Any] = []

    def go_away(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def run(self) -> Answer:
        await self._app(self._scope, self._incoming.get, self._send)
        start: Any = self.sent[0] if self.sent else {"status": 0, "headers": ()}
        body = b"".join(event["body"] for event in self.sent[1:])
        return Answer(start["status"], dict(start["headers"]), body)

    async def _send(self, event: Any) -> None:
        self.sent.append(event)


async def call(app: Any, method: str, path: str, body: Any = b"", headers: Sequence[Any] = ()) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await Connection(app, method, path, raw, headers).run()


async def chat(app: Any, episode: Episode, messages: Sequence[ChatMessage], **fields: Any) -> Answer:
    """Ask for a turn as a client does."""
    return await call(app, "POST", f"{episode.path}/v1/chat/completions", {"messages": list(messages), **fields})


def user(content: str) -> ChatMessage:
    return {"role": "user", "content": content}
