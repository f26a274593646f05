import os
import threading
from datetime import date
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from asyncrl.errors import ConfigError
from asyncrl.files.lock import locked
from asyncrl.wire.keys import key_folder
from asyncrl.wire.keys.allow_list import AllowedKey, AllowList, to_text, write_allow_list
from asyncrl.wire.keys.key import new_key, read_key
from asyncrl.wire.keys.key_folder import AllowedKeys, KeyFolder, default_folder

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


# ── test key folder ───────────────────────────────────────────────────────────────────────────


def owner(folder: KeyFolder, public: bytes, now_s: float = NOW_S) -> str | None:
    found = folder.allow_list().owner_of(public, now_s)
    return found.name if found else None


def test_the_default_folder_is_that_of_the_environment_or_the_user() -> None:
    assert default_folder({"ASYNCRL_KEYS": "/k", "HOME": "/h"}) == Path("/k")
    assert default_folder({"XDG_CONFIG_HOME": "/c", "HOME": "/h"}) == Path("/c/asyncrl/keys")
    assert default_folder({"HOME": "/h"}) == Path("/h/.config/asyncrl/keys")
    with pytest.raises(ConfigError, match="give --keys DIR, or set ASYNCRL_KEYS"):
        default_folder({})


def test_init_makes_a_pair_and_an_empty_list_that_only_the_user_can_enter(folder: KeyFolder) -> None:
    broker = folder.broker()
    assert (broker.name, broker.roles, broker.broker) == ("broker", (), b"")
    assert len(folder.allow_list()) == 0
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in folder.path.iterdir()} == {"broker.key", "allowed.toml", "lock"}
    assert [path.stat().st_mode & 0o777 for path in folder.path.iterdir()] == [0o600] * 3


@pytest.mark.parametrize("kept", ["broker.key", "allowed.toml"])
def test_init_overwrites_nothing(folder: KeyFolder, kept: str) -> None:
    for file in (folder.broker_file, folder.allow_list_file):
        if file.name != kept:
            file.unlink()
    before = (folder.path / kept).read_text()
    with pytest.raises(ConfigError, match=f"{kept} exists and is not overwritten"):
        folder.init()
    assert (folder.path / kept).read_text() == before
    assert len(list(folder.path.iterdir())) == 2


def test_an_added_key_is_allowed_and_has_a_file_for_its_machine(folder: KeyFolder) -> None:
    key = folder.add("gpu1", ["rollout", "reward"])
    pair = read_key(folder.node_file("gpu1"))
    assert (pair.name, pair.roles, pair.public) == ("gpu1", ("rollout", "reward"), key.public)
    assert pair.broker == folder.broker().public
    assert owner(folder, pair.public) == "gpu1"
    assert folder.node_file("gpu1").parent.stat().st_mode & 0o777 == 0o700


def test_a_key_made_elsewhere_is_allowed_without_a_file(folder: KeyFolder) -> None:
    pair = new_key("gpu1", ())
    assert folder.add("gpu1", ["rollout"], pair.public).public == pair.public
    assert owner(folder, pair.public) == "gpu1"
    assert not folder.node_file("gpu1").exists()


def test_a_refused_key_changes_no_file(folder: KeyFolder) -> None:
    public = folder.add("gpu1", ["rollout"]).public
    before = {path: path.read_text() for path in folder.path.rglob("*") if path.is_file()}
    for name, roles, given, error in (
        ("gpu1", ["rollout"], None, "there is a key named 'gpu1' already"),
        ("gpu2", ["rollouts"], None, "unknown role 'rollouts'"),
        ("gpu2", ["rollout"], public, "belongs to 'gpu1' already"),
        ("gpu2", ["rollout"], folder.broker().public, "that is the public key of the broker itself, not of gpu2"),
        ("../gpu2", ["rollout"], None, "cannot name a key"),
    ):
        with pytest.raises(ConfigError, match=error):
            folder.add(name, roles, given)
    assert {path: path.read_text() for path in folder.path.rglob("*") if path.is_file()} == before


def test_a_revoked_key_is_refused_and_its_file_deleted(folder: KeyFolder) -> None:
    public = folder.add("gpu1", ["rollout"]).public
    assert folder.revoke("gpu1").public == public
    assert owner(folder, public) is None
    assert not folder.node_file("gpu1").exists()
    with pytest.raises(ConfigError, match="there is no key named 'gpu1'"):
        folder.revoke("gpu1")


def test_a_rotation_makes_another_pair_for_the_same_roles(folder: KeyFolder) -> None:
    old = folder.add("gpu1", ["rollout"]).public
    new = folder.rotate("gpu1", overlap_s=60.0)
    assert read_key(folder.node_file("gpu1")).public == new.public != old
    assert (new.roles, new.previous, new.previous_until) == (("rollout",), old, NOW_S + 60)
    assert (owner(folder, old), owner(folder, old, NOW_S + 60), owner(folder, new.public)) == ("gpu1", None, "gpu1")


def test_a_rotation_to_a_pair_made_elsewhere_deletes_the_old_file(folder: KeyFolder) -> None:
    old = folder.add("gpu1", ["rollout"]).public
    pair = new_key("gpu1", ())
    folder.rotate("gpu1", public=pair.public)
    assert (owner(folder, old), owner(folder, pair.public)) == (None, "gpu1")
    assert not folder.node_file("gpu1").exists()


def test_another_pair_of_the_broker_is_in_every_file_that_is_here(folder: KeyFolder) -> None:
    old = folder.broker()
    before = {name: folder.add(name, ["rollout"]).public for name in ("gpu1", "gpu2")}
    new, rewritten = folder.rotate_broker()
    assert folder.broker() == new
    assert new.public != old.public
    assert rewritten == [folder.node_file("gpu1"), folder.node_file("gpu2")]
    for name, public in before.items():
        node = read_key(folder.node_file(name))
        assert (node.public, node.broker) == (public, new.public)
        assert owner(folder, public) == name


def test_a_damaged_file_of_a_node_stops_the_rotation_of_the_broker_before_it_begins(folder: KeyFolder) -> None:
    folder.add("gpu1", ["rollout"])
    folder.add("gpu2", ["rollout"])
    folder.node_file("gpu2").write_text("name")
    old, first = folder.broker(), read_key(folder.node_file("gpu1"))
    with pytest.raises(ConfigError, match=r"gpu2\.key is not a key file"):
        folder.rotate_broker()
    assert (folder.broker(), read_key(folder.node_file("gpu1"))) == (old, first)


def test_a_list_that_cannot_be_written_allows_no_key(folder: KeyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that ends between its two files leaves a pair that nobody allows, and works when it is given again."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(key_folder, "write_allow_list", full)
        with pytest.raises(ConfigError, match=r"cannot write the keys in .*: No space left on device"):
            folder.add("gpu1", ["rollout"])
    assert owner(folder, read_key(folder.node_file("gpu1")).public) is None
    folder.add("gpu1", ["rollout"])
    assert owner(folder, read_key(folder.node_file("gpu1")).public) == "gpu1"


def test_an_unprepared_folder_says_how_to_begin(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o700)
    for folder in (KeyFolder(tmp_path / "nowhere"), KeyFolder(tmp_path / "empty")):
        for use in (folder.broker, partial(folder.add, "a", ["rollout"]), folder.rotate_broker):
            with pytest.raises(
                ConfigError, match=r"there are no keys in .*: make them with `asyncrl keys init --keys \S+`"
            ):
                use()


def test_a_folder_that_others_can_enter_is_refused(folder: KeyFolder) -> None:
    folder.path.chmod(0o750)
    with pytest.raises(ConfigError, match=r"other users can enter .* \(mode 0750\): chmod 700 it"):
        folder.add("gpu1", ["rollout"])
    with pytest.raises(ConfigError, match=r"other users can enter .* \(mode 0750\): chmod 700 it"):
        folder.broker()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_the_folder_of_another_user_is_changed_by_that_user_alone(folder: KeyFolder) -> None:
    os.chown(folder.path, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to #12345: give the command as #12345, with `sudo -u #12345`"):
        folder.add("gpu1", ["rollout"])


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write the keys in .*file"):
        KeyFolder(tmp_path / "file").init()


def test_commands_at_the_same_time_wait_for_each_other(folder: KeyFolder) -> None:
    names = [f"gpu{number}" for number in range(6)]
    threads = [threading.Thread(target=folder.add, args=(name, ["rollout"])) for name in names]
    with locked(folder.path / "lock", "held by the test"):
        for thread in threads:
            thread.start()
        assert len(folder.allow_list()) == 0
    for thread in threads:
        thread.join(10.0)
    assert sorted(key.name for key in folder.allow_list()) == names
