"""
Messages of a request in one form, whatever a client makes of them on their way back.

    {"role": "assistant", "content": [{"type": "text", "text": " a ?"}], "refusal": null, "tool_calls": null}
        ─▶ {"role": "assistant", "content": " a ?"}

Fields that are null or empty are left out, parts of text are joined, arguments of calls are compact JSON with sorted
keys. Whitespace, ids of calls and the order of everything else are kept: they are what the policy reads.
"""

from typing import Any, Literal

import msgspec
from msgspec import Struct

from asyncrl.environment.interface import ChatMessage
from asyncrl.rollout.gateway.refusal import Refused

SORTED = msgspec.json.Encoder(order="sorted")


class Part(Struct):
    type: str
    text: str = ""
    refusal: str = ""


class Function(Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class Call(Struct):
    function: Function
    id: str | None = None
    type: Literal["function"] | None = None


class SentMessage(Struct):
    """A message as a client sends it. Fields that no chat template reads are not decoded."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[Call] | None = None
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
                raise Refused(400, "invalid_messages", f"a message of {self.role} has tool_calls", param="messages")
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
                raise Refused(400, "unsupported_content", message, param="messages")
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
