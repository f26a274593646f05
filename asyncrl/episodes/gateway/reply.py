"""Turns of the policy as OpenAI's chat completions: whole, and as a stream of chunks."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.engine import ChatMessage, PolicyTurn
from asyncrl.episodes.gateway.chat_request import Function, called
from asyncrl.messages.words import FinishReason

Text = Callable[[Sequence[int]], str]
"""Text of tokens; `TurnBoundary.text`."""

LAST_EVENT = b"data: [DONE]\n\n"
KEEP_ALIVE = b": sampling\n\n"
"""A comment, which clients skip."""


class Choice(Struct, frozen=True):
    """One turn, as it is delivered."""

    turn: int
    message: ChatMessage
    """In the form of `messages`: what the program is expected to send back."""
    finish_reason: str
    token_ids: list[int]
    logprobs: list[float]


class Reply(Struct, frozen=True):
    """Answer to a request. The same for every repetition of it."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    parent: int
    context_ids: Sequence[int]
    """Tokens that the choices read after their parent."""
    num_prompt: int
    """Tokens that they read in all."""

    @property
    def usage(self) -> dict[str, int]:
        prompt, written = self.num_prompt, sum(len(choice.token_ids) for choice in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}

    def body(self, *, prompt_ids: Sequence[int] | None = None, text: Text | None = None) -> bytes:
        """
        The whole answer as JSON.

        Args:
            prompt_ids: All tokens that the choices read, to be told with those written; None leaves both out.
            text: Adds log-probs, with the text of each token.
        """
        choices = [
            {
                "index": index,
                "message": {**choice.message, "content": _content(choice.message)},
                "finish_reason": choice.finish_reason,
                "logprobs": None if text is None else _logprobs(choice, text),
                **({} if prompt_ids is None else {"token_ids": choice.token_ids}),
            }
            for index, choice in enumerate(self.choices)
        ]
        extra = {} if prompt_ids is None else {"prompt_token_ids": prompt_ids}
        return msgspec.json.encode({**self._head("chat.completion"), "choices": choices, "usage": self.usage, **extra})

    def events(
        self, *, usage: bool = False, prompt_ids: Sequence[int] | None = None, text: Text | None = None
    ) -> bytes:
        """The whole answer as server-sent events, the last one included. See `body`."""
        head = self._head("chat.completion.chunk")
        lines = []
        for index, choice in enumerate(self.choices):
            for number, part in enumerate(_parts(choice, text, has_ids=prompt_ids is not None)):
                extra = {} if prompt_ids is None or index or number else {"prompt_token_ids": prompt_ids}
                lines.append(event({**head, "choices": [{"index": index, "finish_reason": None, **part}], **extra}))
        if usage:
            lines.append(event({**head, "choices": [], "usage": self.usage}))
        return b"".join([*lines, LAST_EVENT])

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def delivered(said: PolicyTurn, turn: int, *, reads_calls: bool) -> ChatMessage:
    """
    The message of one turn.

    Calls have ids that depend on the turn alone, so that a program that runs again gets the same. A call that cannot
    be read is delivered as text beside the others: the program sees what the policy wrote, and can tell it so.
    """
    readable = [(place, call) for place, call in enumerate(said.tool_calls) if not call.problem]
    if not reads_calls or not readable:
        return {"role": "assistant", "content": said.text}
    calls = [called(call.id or f"call_{turn}_{place}", Function(call.name, call.arguments)) for place, call in readable]
    return {"role": "assistant", "content": said.content, "tool_calls": calls}


def finish_reason(message: ChatMessage, written: FinishReason) -> str:
    return "length" if written == "length" else "tool_calls" if message.get("tool_calls") else "stop"


def _content(message: ChatMessage) -> str | None:
    """Null beside calls without text, as OpenAI has it."""
    return message["content"] or (None if message.get("tool_calls") else "")


def _parts(choice: Choice, text: Text | None, *, has_ids: bool) -> Iterator[dict[str, Any]]:
    yield {"delta": {"role": "assistant", "content": ""}}
    tail: dict[str, Any] = {} if text is None else {"logprobs": _logprobs(choice, text)}
    if has_ids:
        tail["token_ids"] = choice.token_ids
    delta: dict[str, Any] = {"content": choice.message["content"]}
    if calls := choice.message.get("tool_calls"):
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
    yield {"delta": delta, **tail}
    yield {"delta": {}, "finish_reason": choice.finish_reason}


def _logprobs(choice: Choice, text: Text) -> dict[str, Any]:
    tokens = [text([token]) for token in choice.token_ids]
    content = [
        {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}
        for token, logprob in zip(tokens, choice.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}
