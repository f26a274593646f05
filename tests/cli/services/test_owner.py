"""Folders and secrets are for the user of the services alone."""

import getpass
import os
import stat
from pathlib import Path

import pytest

from asyncrl.cli.services.owner import Owner, closed_folder, find_owner, make_folders, make_secret
from asyncrl.errors import ConfigError
from asyncrl.files.secret_file import read_secret


def test_the_owner_is_the_current_user_unless_another_is_named():
    owner = find_owner(None, is_made_later=False)
    assert owner.name == getpass.getuser()
    assert owner.ids is not None
    assert owner.ids[0] == os.geteuid()


def test_a_missing_user_is_refused_unless_it_is_made_later():
    with pytest.raises(ConfigError, match="there is no such user; create it, for example with useradd"):
        find_owner("nobody-here", is_made_later=False)
    assert find_owner("nobody-here", is_made_later=True) == Owner("nobody-here", "nobody-here")


def modes(*paths: Path) -> list[int]:
    return [stat.S_IMODE(path.stat().st_mode) for path in paths]


def test_folders_are_those_of_the_owner(tmp_path: Path):
    make_folders([tmp_path / "a" / "b"], find_owner(None, is_made_later=False))
    assert modes(tmp_path / "a", tmp_path / "a" / "b") == [0o700, 0o700]


def test_a_user_that_is_made_later_may_pass_the_parents_of_its_folder(tmp_path: Path):
    before = os.umask(0o022)
    try:
        make_folders([tmp_path / "a" / "b"], Owner("new", "new"))
    finally:
        os.umask(before)
    assert modes(tmp_path / "a", tmp_path / "a" / "b") == [0o755, 0o700]


def test_a_secret_is_made_once(tmp_path: Path):
    owner = find_owner(None, is_made_later=False)
    make_secret(tmp_path / "secret", owner)
    made = read_secret(tmp_path / "secret")
    make_secret(tmp_path / "secret", owner)
    assert read_secret(tmp_path / "secret") == made


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot create .*file: File exists"):
        make_folders([tmp_path / "file" / "a"], find_owner(None, is_made_later=False))


def test_a_folder_is_closed_to_those_whom_its_mode_keeps_out(tmp_path: Path):
    folder = tmp_path / "a"
    folder.mkdir(mode=0o700)
    stranger, found = Owner("nobody", "nogroup", ids=(65534, 65534)), folder.stat()
    group = Owner("nobody", "x", ids=(65534, found.st_gid))
    for parent in folder.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    assert closed_folder(folder / "python", stranger) == folder
    assert closed_folder(folder / "python", Owner("new", "new")) == folder
    assert closed_folder(folder / "python", Owner("root", "root", ids=(0, 0))) is None
    assert closed_folder(folder / "python", Owner("me", "me", ids=(found.st_uid, -1))) is None
    folder.chmod(0o710)
    assert closed_folder(folder / "python", group) is None
    assert closed_folder(folder / "python", stranger) == folder
