from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.files.access import (
    is_secret,
    new_secret,
    read_private,
    read_secret,
    user_folder,
    write_private,
    write_secret,
)


def test_a_written_file_is_read_back_and_private(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    write_private(path, "grün\n")
    assert read_private(path, "key file") == "grün\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_stays_private_when_an_open_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_of_other_users_too_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    write_private(path, "text")
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"other users can read the key file {path} \\(mode 0{mode:o}\\): chmod 600"):
        read_private(path, "key file")


def test_a_credential_of_systemd_may_show_a_group_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "asyncrl.key"
    write_private(path, "text")
    path.chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_private(path, "key file") == "text"


@pytest.mark.parametrize(("content", "cause"), [(None, "No such file"), (b"\xff", "codec can't decode")])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, cause: str) -> None:
    path = tmp_path / "file"
    if content:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"cannot read the key file {path}: .*{cause}"):
        read_private(path, "key file")


# ── test secret file ──────────────────────────────────────────────────────────────────────────


def test_a_written_secret_is_read_back_and_private(tmp_path: Path) -> None:
    path, secret = tmp_path / "secret", new_secret()
    write_secret(path, secret)
    assert read_secret(path) == secret
    assert path.stat().st_mode & 0o777 == 0o600


def test_two_secrets_differ() -> None:
    assert new_secret() != new_secret()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    write_secret(tmp_path / "secret", new_secret())
    (tmp_path / "secret").chmod(mode)
    with pytest.raises(ConfigError, match=f"other users can read .* \\(mode 0{mode:o}\\): chmod 600"):
        read_secret(tmp_path / "secret")


def test_a_credential_of_systemd_may_show_a_group_permission_of_secret_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = new_secret()
    write_secret(tmp_path / "asyncrl.secret", secret)
    (tmp_path / "asyncrl.secret").chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_secret(tmp_path / "asyncrl.secret") == secret


@pytest.mark.parametrize("text", ["", "hello", "ab" * 31, "ab" * 33])
def test_another_text_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "secret").write_text(text)
    (tmp_path / "secret").chmod(0o600)
    with pytest.raises(ConfigError, match="is not a secret file: expected 64 hexadecimal digits"):
        read_secret(tmp_path / "secret")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the secret file .*nowhere: No such file"):
        read_secret(tmp_path / "nowhere")


def test_a_secret_is_told_by_its_form(tmp_path: Path) -> None:
    write_secret(tmp_path / "secret", new_secret())
    (tmp_path / "key").write_text('name = "gpu-1"\n')
    (tmp_path / "bytes").write_bytes(b"\xff")
    assert is_secret(tmp_path / "secret")
    assert not any(is_secret(tmp_path / name) for name in ("key", "bytes", "missing"))


# ── test user folders ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, Path("/s")),
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, Path("/h/.local/state")),
        ({"XDG_STATE_HOME": "", "HOME": "/h"}, Path("/h/.local/state")),
        ({}, None),
    ],
)
def test_a_folder_is_named_or_below_the_home_directory(environment: dict[str, str], expected: Path | None) -> None:
    assert user_folder("state", environment) == expected


def test_each_kind_has_a_folder_of_its_own() -> None:
    assert user_folder("config", {"HOME": "/h"}) == Path("/h/.config")
    assert user_folder("cache", {"HOME": "/h"}) == Path("/h/.cache")
