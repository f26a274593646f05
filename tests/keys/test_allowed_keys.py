import os
from datetime import date
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from asyncrl.errors import ConfigError
from asyncrl.keys.allow_list import AllowedKey, AllowList
from asyncrl.keys.allow_list_file import to_text, write_allow_list
from asyncrl.keys.allowed_keys import AllowedKeys
from asyncrl.keys.key_folder import KeyFolder

NOW_S = 1_790_000_000.0
A, B = b"a" * 32, b"b" * 32


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def names(allowed: AllowedKeys, *publics: bytes) -> list[str | None]:
    found = [allowed.owner_of(public) for public in publics]
    return [key.name if key else None for key in found]


def entry(name: str, public: bytes, *roles: str) -> AllowedKey:
    return AllowedKey(name, roles or ("rollout",), public, date(2026, 9, 21))


@pytest.fixture
def folder(tmp_path: Path) -> KeyFolder:
    folder = KeyFolder(tmp_path / "keys", clock=lambda: NOW_S)
    folder.init()
    return folder


def test_a_running_broker_sees_what_commands_change(folder: KeyFolder) -> None:
    allowed = AllowedKeys(folder.path, clock=lambda: NOW_S)
    gpu1 = folder.add("gpu1", ["rollout"]).public
    assert names(allowed, gpu1) == [None]

    assert allowed.refresh() == []
    assert names(allowed, gpu1) == ["gpu1"]

    folder.revoke("gpu1")
    assert allowed.refresh() == [gpu1]
    assert names(allowed, gpu1) == [None]
    assert allowed.refresh() == [], "reported once"


def test_the_file_may_be_given_in_place_of_its_folder(folder: KeyFolder) -> None:
    gpu1 = folder.add("gpu1", ["rollout"]).public
    assert names(AllowedKeys(folder.allow_list_file), gpu1) == ["gpu1"]


def test_a_rotation_cuts_the_old_key_off_at_once(folder: KeyFolder) -> None:
    old = folder.add("gpu1", ["rollout"]).public
    allowed = AllowedKeys(folder.path, clock=lambda: NOW_S)
    new = folder.rotate("gpu1").public
    assert allowed.refresh() == [old]
    assert names(allowed, old, new) == [None, "gpu1"]


def test_an_overlap_ends_by_the_clock_of_the_broker(folder: KeyFolder) -> None:
    clock = Clock()
    old = folder.add("gpu1", ["rollout"]).public
    allowed = AllowedKeys(folder.path, clock)
    new = folder.rotate("gpu1", overlap_s=60.0).public
    assert allowed.refresh() == []
    assert names(allowed, old, new) == ["gpu1", "gpu1"]

    clock.now_s += 60.0
    assert names(allowed, old, new) == [None, "gpu1"], "refused before the next look"
    assert allowed.refresh() == [old]
    assert allowed.refresh() == []


def test_a_key_that_lost_a_role_or_its_name_must_connect_again(tmp_path: Path) -> None:
    path = tmp_path / "allowed.toml"
    write_allow_list(path, AllowList([entry("gpu1", A, "rollout", "reward"), entry("gpu2", B)]))
    allowed = AllowedKeys(path)
    write_allow_list(path, AllowList([entry("gpu1", A, "rollout", "reward", "spool"), entry("gpu2", B)]))
    assert allowed.refresh() == [], "one more role is no reason"
    write_allow_list(path, AllowList([entry("gpu1", A, "rollout"), entry("gpu3", B)]))
    assert set(allowed.refresh()) == {A, B}
    assert names(allowed, A, B) == ["gpu1", "gpu3"]


@pytest.mark.parametrize("damage", ["", "[[key]]\nname = 1", "\x00\x00\x00", None])
def test_an_invalid_file_changes_nothing_and_is_logged_once(tmp_path: Path, damage: str | None) -> None:
    path = tmp_path / "allowed.toml"
    write_allow_list(path, AllowList([entry("gpu1", A)]))
    allowed = AllowedKeys(path)

    path.unlink()
    if damage is not None:
        path.write_text(damage)
    with capture_logs() as logged:
        assert [allowed.refresh() for _ in range(3)] == [[], [], []]
        assert names(allowed, A, B) == ["gpu1", None]
    assert [(line["event"], line["log_level"], line["kept_keys"]) for line in logged] == [
        ("allow_list.refused", "error", 1)
    ]
    assert str(path) in logged[0]["reason"]

    write_allow_list(path, AllowList([entry("gpu2", B)]))
    assert allowed.refresh() == [A]
    assert names(allowed, A, B) == [None, "gpu2"]


def test_a_file_that_becomes_readable_again_is_read(tmp_path: Path) -> None:
    path = tmp_path / "allowed.toml"
    write_allow_list(path, AllowList([entry("gpu1", A)]))
    allowed = AllowedKeys(path)
    path.write_text(to_text(AllowList([entry("gpu2", B)])))
    path.chmod(0o666)
    allowed.refresh()
    assert names(allowed, A, B) == ["gpu1", None], "others could write it"
    path.chmod(0o600)
    assert allowed.refresh() == [A]
    assert names(allowed, A, B) == [None, "gpu2"]


def test_a_change_that_keeps_size_and_time_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "allowed.toml"
    write_allow_list(path, AllowList([entry("gpu1", A)]))
    found = path.stat()
    allowed = AllowedKeys(path)
    write_allow_list(path, AllowList([entry("gpu1", B)]))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert path.stat().st_size == found.st_size
    assert allowed.refresh() == [A]


def test_a_broker_does_not_start_with_an_invalid_list(tmp_path: Path) -> None:
    (tmp_path / "allowed.toml").write_text("version = 1\n[[key]]\n")
    with pytest.raises(ConfigError, match="is not an allow-list: key 1"):
        AllowedKeys(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot read the allow-list .*nowhere: No such file"):
        AllowedKeys(tmp_path / "nowhere")
