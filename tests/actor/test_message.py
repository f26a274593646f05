"""Messages are arrays that begin with their class name, and may grow at the end."""

import msgspec

from asyncrl.actor.message import Message, Value


class Place(Value, frozen=True):
    row: int


class Found(Message, frozen=True):
    place: Place
    note: str = ""


def test_a_message_is_an_array_that_begins_with_its_name() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Found(Place(3), "x"))) == ["Found", [3], "x"]


def test_a_field_with_a_default_may_be_missing() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(["Found", [3]]), type=Found) == Found(Place(3))
