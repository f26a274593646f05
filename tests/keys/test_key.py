from pathlib import Path

import pytest
import structlog
import zmq
from rich.console import Console
from rich.pretty import pretty_repr
from structlog.testing import capture_logs
from zmq.utils import z85

from asyncrl.errors import ConfigError
from asyncrl.keys.key import (
    ROLES,
    Key,
    check_name,
    check_node_name,
    check_roles,
    fingerprint,
    from_hex,
    is_pair,
    new_key,
)
from asyncrl.keys.key_file import read_key, write_key
from tests.keys.leaks import forms_of

BROKER = bytes(range(32))


def test_a_pair_is_what_zeromq_takes() -> None:
    key = new_key("gpu1", ["rollout", "reward"], BROKER)
    assert (key.name, key.roles, key.broker) == ("gpu1", ("rollout", "reward"), BROKER)
    assert zmq.curve_public(z85.encode(key.private)) == z85.encode(key.public)
    assert is_pair(key)


def test_two_pairs_differ() -> None:
    first, second = new_key("a", ()), new_key("a", ())
    assert len({first.public, first.private, second.public, second.private}) == 4
    assert not is_pair(Key("a", (), first.public, second.private))


def test_no_text_of_a_key_shows_its_private_key() -> None:
    key = new_key("gpu1", ("rollout",), BROKER)
    with capture_logs() as logged:
        structlog.get_logger().info("key.read", key=key)
    console = Console(record=True, quiet=True)
    console.print(key, [key], {"key": key})
    try:
        raise ValueError(key)
    except ValueError as error:
        raised = f"{error!r} {error}"
    texts = [repr(key), str(key), f"{key}", f"{[key]!r}", raised, repr(logged), pretty_repr(key), console.export_text()]
    texts.append(str(structlog.processors.JSONRenderer()(None, "info", {"key": key})))
    assert [text for text in texts for form in forms_of(key) if form in text] == []
    assert repr(key) == f"<Key gpu1 {key.public.hex()[:16]}>"


@pytest.mark.parametrize("field", ["public", "private", "broker"])
@pytest.mark.parametrize("length", [1, 31, 33])
def test_a_key_of_another_length_is_refused_and_not_shown(field: str, length: int) -> None:
    fields = {"public": BROKER, "private": BROKER, "broker": BROKER, field: b"K" * length}
    with pytest.raises(ConfigError, match=f"^{field}: expected 32 bytes, got {length}$"):
        Key("a", (), **fields)


def test_a_fingerprint_is_the_start_of_the_public_key() -> None:
    assert fingerprint(BROKER) == "0001020304050607"


def test_hexadecimal_digits_of_either_case_are_a_key() -> None:
    assert from_hex(BROKER.hex().upper(), "--public") == BROKER


@pytest.mark.parametrize(
    ("text", "found"),
    [("", "0"), ("ab", "2"), ("ab" * 32 + "\n", "65"), ("g" * 64, "other"), ("a b" * 21 + "c", "other")],
)
def test_other_text_is_no_key_and_not_shown(text: str, found: str) -> None:
    with pytest.raises(ConfigError, match=f"^--public: expected 64 hexadecimal digits, got {found} characters$"):
        from_hex(text, "--public")


@pytest.mark.parametrize("name", ["a", "gpu-1.lab_2", "A" * 64, "..."])
def test_letters_digits_dots_dashes_and_underscores_make_a_name(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "a\n", "A" * 65, 'a"'])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a key: expected 1 to 64 letters"):
        check_name(name)


def test_the_name_of_the_broker_is_not_for_nodes() -> None:
    check_name("broker")
    with pytest.raises(ConfigError, match="'broker' is the name of the broker's own key"):
        check_node_name("broker")


def test_roles_are_those_of_nodes_and_operators() -> None:
    check_roles(ROLES)
    check_roles(())
    with pytest.raises(
        ConfigError, match="unknown role 'broker': expected one of rollout, reward, trainer, spool, super"
    ):
        check_roles(("rollout", "broker"))
    with pytest.raises(ConfigError, match="a role is given twice: reward, reward"):
        check_roles(("reward", "reward"))


def test_a_key_survives_its_file(tmp_path: Path) -> None:
    key = new_key("gpu1", ("rollout",), BROKER)
    write_key(tmp_path / "key", key)
    assert read_key(tmp_path / "key") == key
