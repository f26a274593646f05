"""Messages survive encoding and decoding, also between nodes of different versions."""

from importlib import import_module
from pkgutil import iter_modules
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from asyncrl import messages
from asyncrl.messages.codec import Message, Value
from asyncrl.messages.reward import Scored, ScoredItem
from asyncrl.messages.rollout import Offer
from asyncrl.messages.session import Hello, Stop
from asyncrl.messages.spool import Fetch, Fetched, Put, Stored
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.wire import MESSAGES, PROTOCOL, AnyMessage
from asyncrl.messages.words import EVERY, MAX_ITEMS, Role

KINDS = list(MESSAGES)
MODULES = [import_module(f"{messages.__name__}.{found.name}") for found in iter_modules(messages.__path__)]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


def defined(base: type) -> list[type]:
    """The subclasses of ``base`` in the modules of `messages`."""
    things = [thing for module in MODULES for thing in vars(module).values() if isinstance(thing, type)]
    return [thing for thing in dict.fromkeys(things) if issubclass(thing, base) and thing != base]


def hints_of(kind: type[Struct]) -> dict[str, Any]:
    """Types of the fields, by name."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in msgspec.structs.fields(kind)}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Strategy for the values of a field with this type."""
    scalars: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-(2**63), 2**64 - 1),
        float: st.floats(allow_nan=False),
        str: st.text(),
        bool: st.booleans(),
        bytes: st.binary(),
        memoryview: st.binary().map(memoryview),
        type(None): st.none(),
    }
    if hint in scalars:
        return scalars[hint]
    if isinstance(hint, type) and issubclass(hint, Struct):
        return st.builds(hint, **{name: values(part) for name, part in hints_of(hint).items()})
    arguments = get_args(hint)
    match get_origin(hint):
        case origin if origin is Literal:
            return st.sampled_from(arguments)
        case origin if origin is list:
            return st.lists(values(arguments[0]), max_size=3)
        case origin if origin is tuple:
            return st.lists(values(arguments[0]), max_size=3).map(tuple)
        case origin if origin is dict:
            return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
        case origin if origin in (Union, UnionType):
            return st.one_of([values(argument) for argument in arguments])
    raise NotImplementedError(hint)


ANY = st.one_of([values(kind) for kind in KINDS])


@given(ANY)
def test_every_message_survives_encoding_and_decoding(message: Message) -> None:
    decoded = _decoder.decode(_encoder.encode(message))
    assert type(decoded) is type(message)
    assert decoded == message


@given(ANY, st.lists(st.one_of(st.integers(0, 9), st.text(), st.lists(st.integers(0, 9))), min_size=1, max_size=3))
def test_fields_appended_by_a_newer_node_are_ignored(message: Message, appended: list[object]) -> None:
    on_the_wire = msgspec.msgpack.decode(_encoder.encode(message))
    assert _decoder.decode(_encoder.encode([*on_the_wire, *appended])) == message


@given(ANY)
def test_fields_missing_from_an_older_node_get_their_defaults(message: Message) -> None:
    fields = msgspec.structs.fields(message)
    num_required = sum(field.required for field in fields)
    on_the_wire = msgspec.msgpack.decode(_encoder.encode(message))
    from_older = _decoder.decode(_encoder.encode(on_the_wire[: 1 + num_required]))
    for field in fields[:num_required]:
        assert getattr(from_older, field.name) == getattr(message, field.name)


def test_an_encoded_message_is_its_name_and_its_fields() -> None:
    scored = Scored([ScoredItem(Unit(7, 2, "held_out"), 0.5, {"correct": 1.0}, 9, "18")])
    on_the_wire = ["Scored", [[[7, 2, "held_out"], 0.5, {"correct": 1.0}, 9, "18"]]]
    assert msgspec.msgpack.decode(_encoder.encode(scored)) == on_the_wire


def test_required_fields_precede_fields_with_defaults() -> None:
    for kind in defined(Message) + defined(Value):
        required = [field.required for field in msgspec.structs.fields(kind)]
        assert required == sorted(required, reverse=True), kind


def test_every_message_has_a_sender_and_a_receiver_and_is_in_any_message() -> None:
    received = {kind for kind in KINDS if kind.senders.keys() & set(get_args(Role))}
    assert received == set(KINDS) == set(get_args(AnyMessage)) == set(defined(Message))
    assert all(senders for kind in KINDS for senders in kind.senders.values())


@pytest.mark.parametrize("role", [*sorted(EVERY), "shard"])
def test_every_role_can_be_stopped(role: Role) -> None:
    assert role in Stop.senders


def test_names_on_the_wire_are_unique() -> None:
    names = [kind.__struct_config__.tag for kind in KINDS]
    assert len(set(names)) == len(names)
    assert names == [kind.__name__ for kind in KINDS]


def test_messages_are_immutable_and_compare_by_value() -> None:
    with pytest.raises(AttributeError):
        Offer(1).limit = 2  # type: ignore[misc]
    assert Offer(1) == Offer(1) != Offer(2)


@pytest.mark.parametrize(
    "on_the_wire",
    [["Unheard", 1], ["Offer"], ["Offer", "many"], ["Hello", 1, "cook", "a", "b"], {"type": "Offer"}, [], 7],
    ids=repr,
)
def test_malformed_messages_are_refused(on_the_wire: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        _decoder.decode(_encoder.encode(on_the_wire))


def test_units_sort_by_group_and_then_index() -> None:
    units = [Unit(2, 0), Unit(1, 3), Unit(1, 0)]
    assert sorted(units) == [Unit(1, 0), Unit(1, 3), Unit(2, 0)]


def test_binary_fields_stay_views_into_the_frame() -> None:
    put = Fetched(1, [memoryview(b"payload")])
    frame = _encoder.encode(put)
    (payload,) = _decoder.decode(frame).payloads
    assert payload.obj is frame


def test_the_protocol_is_the_first_field_of_hello() -> None:
    hello = Hello(PROTOCOL, "trainer", "trainer-0", "1")
    assert msgspec.msgpack.decode(_encoder.encode(hello))[:2] == ["Hello", PROTOCOL]


@pytest.mark.parametrize("kind", [Hello, Scored, Stored, Put, Fetch])
def test_a_list_that_is_too_long_is_refused_before_it_is_decoded(kind: type[Message]) -> None:
    hints = hints_of(kind).values()
    listed = [hint for hint in hints if get_origin(hint) is list]
    assert listed
    smallest = {str: "", int: 0, bool: False, Literal: "reward", UnionType: None}
    fields = [[] if hint in listed else smallest[get_origin(hint) or hint] for hint in hints]
    empty = _encoder.encode([kind.__name__, *fields])
    begin, end = empty.rsplit(b"\x90", 1)
    announced = begin + b"\xdd" + (MAX_ITEMS + 1).to_bytes(4, "big") + b"\xc0"
    assert _decoder.decode(empty)

    with pytest.raises(msgspec.ValidationError, match="Expected `array` of length <= 131072"):
        _decoder.decode(announced + end)
