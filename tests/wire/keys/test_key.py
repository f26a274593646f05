from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
import structlog
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from rich.console import Console
from rich.pretty import pretty_repr
from structlog.testing import capture_logs
from zmq.utils import z85

from asyncrl.errors import ConfigError
from asyncrl.wire.keys.key import (
    ROLES,
    Key,
    check_name,
    check_node_name,
    check_roles,
    convert,
    create_key,
    fingerprint,
    from_hex,
    from_text,
    new_key,
    parse,
    quoted,
    read_key,
    to_text,
    write_key,
)
from tests.wire.keys.leaks import forms_of

BROKER = bytes(range(32))


def test_a_pair_is_what_zeromq_takes() -> None:
    key = new_key("gpu1", ["rollout", "reward"], BROKER)
    assert (key.name, key.roles, key.broker) == ("gpu1", ("rollout", "reward"), BROKER)
    assert zmq.curve_public(z85.encode(key.private)) == z85.encode(key.public)


def test_two_pairs_differ() -> None:
    first, second = new_key("a", ()), new_key("a", ())
    assert len({first.public, first.private, second.public, second.private}) == 4


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


# ── test key file ─────────────────────────────────────────────────────────────────────────────

names = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)
roles = st.lists(st.sampled_from(ROLES), unique=True).map(tuple)
publics = st.binary(min_size=32, max_size=32)

GPU1 = new_key("gpu1", ("rollout", "reward"), b"B" * 32)


@settings(deadline=None)
@given(names, roles, st.just(b"") | publics)
def test_every_key_is_read_as_it_was_written(name: str, of: tuple[str, ...], broker: bytes) -> None:
    key = new_key(name, of, broker)
    assert from_text(to_text(key)) == key


def test_a_file_is_private_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    write_key(path, GPU1)
    assert read_key(path) == GPU1
    assert path.stat().st_mode & 0o777 == 0o600
    assert "keep this file secret (mode 0600)" in path.read_text().splitlines()[1]


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    create_key(tmp_path / "node.key", GPU1)
    with pytest.raises(ConfigError, match=r"node\.key exists and is not overwritten"):
        create_key(tmp_path / "node.key", new_key("gpu1", ()))
    assert read_key(tmp_path / "node.key") == GPU1


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write .*file/node\.key: .*; give a path that can be written"):
        create_key(tmp_path / "file" / "node.key", GPU1)


def test_a_missing_file_says_where_keys_are_made(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no such key file: .*node\.key; `asyncrl keys add` makes one on the broker's"
    ):
        read_key(tmp_path / "node.key")


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    write_key(tmp_path / "node.key", GPU1)
    (tmp_path / "node.key").chmod(0o644)
    with pytest.raises(ConfigError, match=r"other users can read the key file .* \(mode 0644\): chmod 600"):
        read_key(tmp_path / "node.key")


def test_a_credential_of_systemd_may_show_a_group_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_key(tmp_path / "asyncrl.key", GPU1)
    (tmp_path / "asyncrl.key").chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_key(tmp_path / "asyncrl.key") == GPU1


def without_line(start: str) -> Callable[[str], str]:
    return lambda text: "".join(line for line in text.splitlines(keepends=True) if not line.startswith(start))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda _: "", "missing key 'name'"),
        (lambda _: "0f" * 32, "not TOML: "),
        (without_line("private"), "missing key 'private'"),
        (lambda text: text.replace("private =", "privat ="), "unknown key 'privat': did you mean 'private'?"),
        (
            lambda text: text.replace('private = "', 'private = "0'),
            "private: expected 64 hexadecimal digits, got 65 char",
        ),
        (
            lambda text: text.replace('broker = "', 'broker = "0'),
            "broker: expected 64 hexadecimal digits, got 65 charact",
        ),
        (lambda text: text.replace('"rollout"', '"rolout"'), "unknown role 'rolout': expected one of rollout, reward"),
        (lambda text: text.replace('"gpu1"', '"gpu 1"'), "'gpu 1' cannot name a key"),
        (lambda text: text.replace("[", "{"), "not TOML: "),
    ],
)
def test_another_text_is_refused_in_one_sentence_without_the_private_key(
    tmp_path: Path, change: Callable[[str], str], error: str
) -> None:
    path = tmp_path / "node.key"
    write_key(path, GPU1)
    path.write_text(change(path.read_text()))
    with pytest.raises(ConfigError) as raised:
        read_key(path)
    assert str(raised.value).startswith(f"{path} is not a key file: {error}")
    assert [form for form in forms_of(GPU1) if form in str(raised.value)] == []


def test_a_private_key_of_another_pair_is_refused(tmp_path: Path) -> None:
    other = new_key("gpu1", ())
    write_key(tmp_path / "node.key", Key("gpu1", (), GPU1.public, other.private))
    with pytest.raises(ConfigError, match="its private key does not belong to its public key"):
        read_key(tmp_path / "node.key")


# ── test strict toml ──────────────────────────────────────────────────────────────────────────

DIGITS = "0f" * 32


class Thing(Struct, frozen=True):
    name: str
    private: bytes
    roles: tuple[str, ...] = ()
    added: date = date(2026, 1, 1)
    other: bytes = b""


def read(text: str) -> Thing:
    return convert(parse(text), Thing)


def test_digits_become_bytes_and_dates_dates() -> None:
    found = read(f'name = "a"\nprivate = "{DIGITS}"\nroles = ["x", "y"]\nadded = 2026-11-22\nother = ""')
    assert found == Thing("a", bytes.fromhex(DIGITS), ("x", "y"), date(2026, 11, 22), b"")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("privat = 1", "unknown key 'privat': did you mean 'private'?"),
        ("zzz = 1", "unknown key 'zzz': expected one of: name, private, roles, added, other"),
        ('name = "a"', "missing key 'private'"),
        (f'name = 1\nprivate = "{DIGITS}"', "name: expected `str`, got `int`"),
        ('name = "a"\nprivate = 5', "private: expected `bytes`, got `int`"),
        (f'name = "a"\nprivate = "{DIGITS}0"', "private: expected 64 hexadecimal digits, got 65 characters"),
        (f'name = "a"\nprivate = "{DIGITS}"\nroles = "x"', "roles: expected `array`, got `str`"),
        (f'name = "a"\nprivate = "{DIGITS}"\nroles = ["x", 1]', "roles[1]: expected `str`, got `int`"),
    ],
)
def test_an_error_names_the_key_and_what_is_wrong(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(text)
    assert str(raised.value) == error
    assert DIGITS not in repr(raised.value)


@pytest.mark.parametrize(
    "text", ["name", "name = 1\nname = 2", "x = " + "[" * 5000, "x = " + "1" * 5000, "x = 2026-13-01", "\x00"]
)
def test_text_that_is_not_toml_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not TOML: "):
        parse(text)


def test_strings_are_written_as_an_array() -> None:
    assert quoted([]) == "[]"
    assert parse(f"x = {quoted(['a', 'b-c'])}") == {"x": ["a", "b-c"]}
