"""
The turn of a record that a request follows, found by the messages that it sends back.

    request    system user │ assistant │ tool           hash of the first three = hash after turn 0
                           └─ turn 0 ──┘   └ new ─┘     ─▶ follows turn 0, with one new message

Each turn is filed under a hash of all messages that its request had, and of its own reply as it was delivered. A
request follows the turn of its last message of the assistant; if no turn has this hash, the request begins a new
root, whose cause is counted: a cause other than `new_root` may be a program, or a fault, that alters replies. Of a
reply only its words and its calls are hashed, because clients drop thoughts, strip white space and give calls other
ids: the tokens that the policy reads are those that it sampled, whatever a client makes of them. Pure rules.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Literal

import msgspec
from msgspec import Struct

from asyncrl.engine import ChatMessage
from asyncrl.episodes.gateway.request import SORTED, tools_key
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT

RootCause = Literal["new_root", "edited_reply", "edited_history", "tools_changed", "template_differs"]
"""
Reason for which a request does not follow what the policy said before. ``new_root``: it contains no reply of this
episode, such as that of a sub-agent or after a summary. ``edited_reply``: its last reply is another one than was
delivered after the same messages. ``edited_history``: it contains a reply, after other messages than the reply was
delivered for. ``tools_changed``: all messages match, the tools do not. ``template_differs``: the chat template renders
the history in another way than the policy read it (``environment.history = "as_template"``), or not at all.
"""


class FoundPlace(Struct, frozen=True):
    """Place of a request in the record: the turn that it follows, and the messages that are new."""

    parent: int
    """Index of a turn, `FROM_PROMPT` or `FROM_NOTHING`."""
    new: Sequence[ChatMessage]
    """Messages that follow the parent; all of them after nothing."""
    seen: bytes
    """Hash of all messages."""
    cause: RootCause | None = None
    """None if the request follows the prompt or a turn."""


class Lineage:
    """
    Turns of one seat of an episode by what its programs saw.

    Args:
        prompt: The messages of the prompt in the form of a request; the same request follows the prompt's own tokens.
            None for a seat that has no prompt.
        tools: The prompt's tools, as JSON.
    """

    def __init__(self, prompt: Sequence[ChatMessage] | None, tools: str = "") -> None:
        self._prompt = None if prompt is None else chain(prompt)[-1]
        self._prompt_tools = tools_key(tools)
        self._turns: dict[bytes, list[tuple[bytes, ChatMessage, int]]] = {}
        """Tools, replies and indices of the turns after which all messages have this hash."""
        self._seen: set[bytes] = set()
        """Hashes of all messages of each request that was answered."""
        self._said: set[bytes] = set()
        """Hashes of the replies alone."""

    def find(self, messages: Sequence[ChatMessage], hashes: Sequence[bytes], tools: bytes) -> FoundPlace:
        """Place of a request with these messages, their `chain`, and these tools, as `tools_key` has them."""
        seen = hashes[-1]
        if seen == self._prompt and tools == self._prompt_tools:
            return FoundPlace(FROM_PROMPT, (), seen)
        last = max((place for place, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        if last < 0:
            return FoundPlace(FROM_NOTHING, messages, seen, "new_root")
        if (turn := self.turn(hashes[last + 1], messages[last], tools)) is not None:
            return FoundPlace(turn, messages[last + 1 :], seen)
        is_known = hashes[last + 1] in self._turns
        return FoundPlace(FROM_NOTHING, messages, seen, self._cause(messages, hashes, last, is_known=is_known))

    def turn(self, seen: bytes, sent: ChatMessage, tools: bytes) -> int | None:
        """
        The turn whose reply ``sent`` is, after which all messages have the hash ``seen``; None if it is none's.

        Of several that said the same, the one whose calls have these ids, or whose thought this is; else the newest.
        """
        fitting = [(said, turn) for turn_tools, said, turn in self._turns.get(seen, ()) if turn_tools == tools]
        if len(fitting) < 2:
            return fitting[0][1] if fitting else None
        calls, thought = _call_ids(sent), sent.get("reasoning_content")

        def likeness(said: ChatMessage) -> tuple[bool, bool, bool]:
            as_written = said["content"] == sent["content"]
            return _call_ids(said) == calls, said.get("reasoning_content") == thought, as_written

        most = max(likeness(said) for said, _ in fitting)
        alike = [turn for said, turn in fitting if likeness(said) == most]
        return alike[0] if all(most) else alike[-1]

    def add(self, seen: bytes, said: ChatMessage, tools: bytes, turn: int) -> None:
        """File a turn, whose reply ``said`` was delivered to a request with the hash ``seen``."""
        self._turns.setdefault(extended(seen, said), []).append((tools, said, turn))
        self._seen.add(seen)
        self._said.add(extended(b"", said))

    def _cause(
        self, messages: Sequence[ChatMessage], hashes: Sequence[bytes], last: int, *, is_known: bool
    ) -> RootCause:
        if is_known:
            return "tools_changed"
        if hashes[last] in self._seen:
            return "edited_reply"
        replies = (message for message in messages if message["role"] == "assistant")
        return "edited_history" if any(extended(b"", reply) in self._said for reply in replies) else "new_root"


def chain(messages: Sequence[ChatMessage]) -> list[bytes]:
    """Hashes of the first 0, 1, 2 ... messages."""
    hashes = [b""]
    for message in messages:
        hashes.append(extended(hashes[-1], message))
    return hashes


def extended(before: bytes, message: ChatMessage) -> bytes:
    """Hash of messages with the hash ``before``, and one more; of a reply, see `Lineage`."""
    if message["role"] != "assistant":
        return sha256(before + SORTED.encode(message)).digest()
    words = " ".join(message["content"].split()).encode()
    calls = SORTED.encode(list(map(_meaning, message["tool_calls"]))) if "tool_calls" in message else b""
    return sha256(b"%s\0%s\0%s" % (before, words, calls)).digest()


def _meaning(call: dict[str, Any]) -> tuple[str, Any]:
    """Name and arguments of a call; numbers as a client in JavaScript writes them, where 1.0 is 1."""
    function = call["function"]
    try:
        return function["name"], ARGUMENTS.decode(function["arguments"])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return function["name"], function["arguments"]


def _whole(text: str) -> int | float:
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 1 << 53 else number


ARGUMENTS = msgspec.json.Decoder(float_hook=_whole)


def _call_ids(message: ChatMessage) -> list[str]:
    return [call["id"] for call in message.get("tool_calls", ())]
