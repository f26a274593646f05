"""
All messages, by receiver, and the codec of the wire.

Nouns and verbs are offers and requests (`Offer`, `Lease`, `Take`); past participles are facts (`Stored`, `Scored`).
On the wire a message is a msgpack array ``[class name, field, field, ...]``. New fields are appended, with a default,
so that older and newer nodes understand each other. Arrays are raw little-endian bytes in ``bin`` fields (int32 token
ids, float32 log-probs) and never lists, which cost 43 times more.
"""

from typing import Any, Union

from asyncrl.messages import files, reward, rollout, session, spool, supervisor, trainer, weights
from asyncrl.messages.codec import Codec, Message

PROTOCOL = 16
"""Version of this vocabulary, sent in `Hello`. The broker refuses a node with another version and names both."""


MESSAGES: tuple[type[Message], ...] = tuple(
    kind
    for module in (session, rollout, spool, reward, trainer, weights, files, supervisor)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Message) and kind.__module__ == module.__name__
)
AnyMessage: Any = Union[MESSAGES]  # noqa: UP007  as many as there are
"""Type of every message, for a decoder."""
CODEC = Codec(AnyMessage)
"""Decoder of every message."""
