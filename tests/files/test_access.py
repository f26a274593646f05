"""What a run writes is its owner's alone, whatever the umask."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.files.access import (
    appending,
    as_folder,
    close_folder,
    group_reads,
    make_folder,
    require_unaltered,
    restrict_umask,
)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask 000", "umask 022", "umask 077"], autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(*paths: Path) -> list[int]:
    return [path.stat().st_mode & 0o7777 for path in paths]


def write_some(folder: Path) -> list[int]:
    """Modes of a folder and of a file that are written without a mode of their own."""
    (folder / "samples").mkdir()
    (folder / "samples" / "a").write_text("prompt")
    return modes(folder / "samples", folder / "samples" / "a")


def test_what_a_process_writes_is_its_owners_alone(tmp_path: Path) -> None:
    restrict_umask()
    assert write_some(tmp_path) == [0o700, 0o600]


def test_a_group_reads_what_is_shared_with_it_and_writes_nothing(tmp_path: Path) -> None:
    restrict_umask(group_reads=True)
    assert write_some(tmp_path) == [0o750, 0o640]


@pytest.mark.parametrize(("of_folder", "withheld"), [(0o700, 0o077), (0o750, 0o027)])
def test_what_a_host_writes_into_a_run_withholds_what_the_run_does(
    tmp_path: Path, of_folder: int, withheld: int
) -> None:
    tmp_path.chmod(of_folder)
    written = write_some(tmp_path)
    as_folder(tmp_path / "samples")
    as_folder(tmp_path / "samples" / "a")
    with appending(tmp_path / "log") as log:
        log.write(b"a line")
    found = modes(tmp_path / "samples", tmp_path / "samples" / "a", tmp_path / "log")
    assert found[:2] == [mode & ~withheld for mode in written]
    assert found[2] & 0o600 == 0o600
    assert not found[2] & withheld


def test_only_the_owner_enters_a_new_run_directory(tmp_path: Path) -> None:
    make_folder(tmp_path / "runs" / "a")
    assert modes(tmp_path / "runs" / "a") == [0o700]


def test_nobody_else_can_put_a_run_in_place_of_one(tmp_path: Path) -> None:
    make_folder(tmp_path / "deep" / "runs" / "a")
    assert all(not mode & 0o022 for mode in modes(tmp_path / "deep", tmp_path / "deep" / "runs"))


def test_a_shared_run_directory_is_known_by_its_mode(tmp_path: Path) -> None:
    make_folder(tmp_path / "a", group_reads=True)
    make_folder(tmp_path / "b")
    assert [group_reads(tmp_path / name) for name in ("a", "b", "missing")] == [True, False, False]


def test_a_run_directory_is_never_made_twice(tmp_path: Path) -> None:
    make_folder(tmp_path / "a")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "a")


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o701])
def test_an_open_run_directory_is_closed_and_its_owner_is_told(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    assert close_folder(tmp_path) == (f"other users could enter {tmp_path} (mode 0{mode:o}): it is 0700 from now on")
    assert modes(tmp_path) == [0o700]
    assert close_folder(tmp_path) == ""


def test_a_run_that_is_shared_later_is_opened_to_its_group_without_a_word(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert close_folder(tmp_path, group_reads=True) == ""
    assert modes(tmp_path) == [0o750]


def test_inherited_groups_stay(tmp_path: Path) -> None:
    """The bit by which all that is made in a folder has the folder's group."""
    tmp_path.chmod(0o2755)
    make_folder(tmp_path / "a", group_reads=True)
    assert modes(tmp_path / "a") == [0o2750]
    tmp_path.chmod(0o2777)
    close_folder(tmp_path, group_reads=True)
    assert modes(tmp_path) == [0o2750]
    assert group_reads(tmp_path)


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_configuration_that_others_could_have_written_is_refused_and_left_as_it_is(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "config.toml"
    path.touch()
    path.chmod(mode)
    with pytest.raises(
        ConfigError, match=rf"can write the configuration {path} \(mode 0{mode:o}\), .* chmod 600 {path}"
    ):
        require_unaltered(path, "configuration")
    assert modes(path) == [mode]


def test_a_configuration_that_others_can_read_is_taken(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    (tmp_path / "config.toml").chmod(0o644)
    require_unaltered(tmp_path / "config.toml", "configuration")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_configuration_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch(mode=0o600)
    os.chown(tmp_path / "config.toml", 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to user 65534, its folder to user 0"):
        require_unaltered(tmp_path / "config.toml", "configuration")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_folder_of_another_user_is_left_to_him(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o755)
    os.chown(tmp_path / "a", 65534, 65534)
    assert close_folder(tmp_path / "a") == ""
    assert modes(tmp_path / "a") == [0o755]
