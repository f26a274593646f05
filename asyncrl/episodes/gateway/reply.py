"""Turns of the policy as they are delivered, in the one form that every dialect writes in its own words."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from asyncrl.engine import ChatMessage, PolicyTurn
from asyncrl.episodes.gateway.request import Function, called
from asyncrl.episodes.tool_calls import after_thought
from asyncrl.messages.words import FinishReason

Text = Callable[[Sequence[int]], str]
"""Text of tokens; `TurnBoundary.text`."""

KEEP_ALIVE = b": sampling\n\n"
"""A comment, which clients skip."""


class Choice(Struct, frozen=True):
    """One turn, as it is delivered."""

    turn: int
    message: ChatMessage
    """In the form of `SentMessage.normal`: what the program is expected to send back."""
    finish_reason: str
    """``stop``, ``length`` or ``tool_calls``."""
    token_ids: list[int]
    logprobs: list[float]
    stopped_by: str = ""
    """Stop string of the request that ended it; empty if none did."""

    @property
    def content(self) -> str:
        text: str = self.message["content"]
        return text

    @property
    def thought(self) -> str:
        thought: str = self.message.get("reasoning_content", "")
        return thought


class Reply(Struct, frozen=True):
    """Answer to a request. The same for whoever joins it while it is sampled."""

    created: int
    model: str
    choices: list[Choice]
    parent: int
    context_ids: Sequence[int]
    """Tokens that the choices read after their parent."""
    num_prompt: int
    """Tokens that they read in all."""

    @property
    def number(self) -> int:
        """Number of the reply in its episode, which its id contains in each dialect."""
        return self.choices[0].turn

    @property
    def num_written(self) -> int:
        return sum(len(choice.token_ids) for choice in self.choices)


class Shown(Struct, frozen=True, kw_only=True):
    """Facts that a client asked to be told beside the reply."""

    usage: bool = False
    prompt_ids: Sequence[int] | None = None
    """All tokens that the choices read, to be told with those written; None leaves both out."""
    text: Text | None = None
    """Adds log-probs, with the text of each token."""


def event(value: object, kind: str = "") -> bytes:
    """A server-sent event."""
    named = b"event: %s\n" % kind.encode() if kind else b""
    return named + b"data: " + msgspec.json.encode(value) + b"\n\n"


def choice_of(
    said: PolicyTurn,
    turn: int,
    *,
    reads_calls: bool,
    taken_ids: set[str],
    stop: Sequence[str],
    token_ids: list[int],
    logprobs: list[float],
    finish_reason: FinishReason,
) -> Choice:
    """
    A turn as it is delivered: its answer, its thought, and its calls.

    Calls have the ids that the policy wrote, if no other call of the episode (``taken_ids``) has them, or ids that
    depend on the turn alone, so that a program that runs again gets the same. A call that cannot be read is delivered
    as text beside the others: the program sees what the policy wrote, and can tell it so. A stop string of the request
    ends the text that is delivered, and never the tokens.
    """
    readable = [(place, call) for place, call in enumerate(said.tool_calls) if reads_calls and not call.problem]
    content = said.content
    if said.tool_calls and not reads_calls:  # as it was written, behind the thought
        content = after_thought(said.text.partition(said.thought)[2] if said.thought else said.text)
    content, stopped_by = _cut(content, stop)
    message: ChatMessage = {"role": "assistant", "content": content}
    if said.thought:
        message["reasoning_content"] = said.thought
    if readable:
        message["tool_calls"] = [
            called(_id_of(call.id, turn, place, taken_ids), Function(call.name, call.arguments))
            for place, call in readable
        ]
    reason = "length" if finish_reason == "length" else "tool_calls" if readable else "stop"
    return Choice(turn, message, reason, token_ids, logprobs, stopped_by)


def _id_of(written: str, turn: int, place: int, taken_ids: set[str]) -> str:
    if not written or written in taken_ids:
        return f"call_{turn}_{place}"
    taken_ids.add(written)
    return written


def _cut(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """The text before the first of the stop strings, and that one."""
    found = [(place, stop) for stop in stops if (place := text.find(stop)) >= 0]
    if not found:
        return text, ""
    place, stop = min(found)
    return text[:place], stop
