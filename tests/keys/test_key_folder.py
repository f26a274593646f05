import os
import threading
from functools import partial
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.files.lock import locked
from asyncrl.keys import key_folder
from asyncrl.keys.key import new_key
from asyncrl.keys.key_file import read_key
from asyncrl.keys.key_folder import KeyFolder, default_folder

NOW_S = 1_790_000_000.0


@pytest.fixture
def folder(tmp_path: Path) -> KeyFolder:
    folder = KeyFolder(tmp_path / "keys", clock=lambda: NOW_S)
    folder.init()
    return folder


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
