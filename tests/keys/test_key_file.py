from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.errors import ConfigError
from asyncrl.keys.key import ROLES, Key, new_key
from asyncrl.keys.key_file import create_key, from_text, read_key, to_text, write_key
from tests.keys.leaks import forms_of

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
