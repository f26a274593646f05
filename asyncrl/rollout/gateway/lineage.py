"""
The turn of a record that a request follows, found by the messages that it sends back.

    request    system user │ assistant │ tool           hash of the first three = hash after turn 0
                           └─ turn 0 ──┘   └ new ─┘     ─▶ follows turn 0, with one new message

Each turn is filed under a hash of all messages that its request had, and of its own reply as it was delivered. A
request follows the turn of its last message of the assistant; if no turn has this hash, the request begins a new root,
whose cause is counted: a cause other than `new_root` may be a program, or a fault, that alters replies. Pure rules.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Literal

from msgspec import Struct

from asyncrl.environment.interface import ChatMessage
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT
from asyncrl.rollout.gateway.messages import SORTED, normal, tools_key

RootCause = Literal["new_root", "edited_reply", "edited_history", "tools_changed", "template_differs"]
"""
Reason for which a request does not follow what the policy said before. ``new_root``: it contains no reply of this
episode, such as that of a sub-agent or after a summary. ``edited_reply``: its last reply is another one than was
delivered after the same messages. ``edited_history``: it contains a reply, after other messages than the reply was
delivered for. ``tools_changed``: all messages match, the tools do not. ``template_differs``: the chat template renders
the history in another way than the policy read it (``environment.history = "as_template"``), or not at all.
"""


class Found(Struct, frozen=True):
    """Place of a request."""

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
    Turns of one episode by what their programs saw.

    Args:
        prompt: The messages of the prompt; the same request follows the prompt's own tokens.
        tools: The prompt's tools, as JSON.
    """

    def __init__(self, prompt: Sequence[ChatMessage], tools: str = "") -> None:
        self._prompt = chain(normal(list(prompt)))[-1]
        self._prompt_tools = tools_key(tools)
        self._turns: dict[bytes, list[tuple[bytes, int]]] = {}
        """Tools and indices of the turns after which all messages have this hash."""
        self._seen: set[bytes] = set()
        """Hashes of all messages of each request that was answered."""
        self._said: set[bytes] = set()
        """Hashes of the replies alone."""

    def find(self, messages: Sequence[ChatMessage], hashes: Sequence[bytes], tools: bytes) -> Found:
        """Place of a request with these messages, their `chain`, and these tools, as `tools_key` has them."""
        seen = hashes[-1]
        if seen == self._prompt and tools == self._prompt_tools:
            return Found(FROM_PROMPT, (), seen)
        last = max((place for place, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        if last < 0:
            return Found(FROM_NOTHING, messages, seen, "new_root")
        known = self._turns.get(hashes[last + 1], [])
        for turn_tools, turn in known:
            if turn_tools == tools:
                return Found(turn, messages[last + 1 :], seen)
        return Found(FROM_NOTHING, messages, seen, self._cause(messages, hashes, last, is_known=bool(known)))

    def add(self, seen: bytes, said: ChatMessage, tools: bytes, turn: int) -> None:
        """File a turn, whose reply ``said`` was delivered to a request with the hash ``seen``."""
        self._turns.setdefault(extended(seen, said), []).append((tools, turn))
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
    """Hash of messages with the hash ``before``, and one more."""
    return sha256(before + SORTED.encode(message)).digest()
