from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.files.private_file import read_private, write_private


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
