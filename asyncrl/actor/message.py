"""Base classes of everything that crosses a link."""

from msgspec import Struct


class Value(Struct, frozen=True, array_like=True, gc=False):
    """Base of parts of messages: a msgpack array of its fields."""


class Message(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of messages: a msgpack array whose first element is the class name."""
