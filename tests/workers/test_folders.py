"""Folders of workers: locked while they are in use, and found when nobody holds them any more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.workers import folders

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def test_a_folder_in_use_is_not_swept_and_one_that_nobody_holds_is(tmp_path: Path) -> None:
    folder = folders.make("asyncrl-test-1", tmp_path / "base")
    (folder.path / "file").write_text("left")

    assert folders.sweep(tmp_path / "base") == []
    folder.close()
    assert folders.sweep(tmp_path / "base") == ["asyncrl-test-1"]
    assert not folder.path.exists()


def test_a_process_that_has_inherited_the_lock_holds_the_folder(tmp_path: Path) -> None:
    folder = folders.make("asyncrl-test-2", tmp_path)
    with subprocess.Popen(["sleep", "3600"], pass_fds=(folder.lock,)) as process:
        folder.close()
        assert folders.sweep(tmp_path) == []
        process.kill()
    assert folders.sweep(tmp_path) == ["asyncrl-test-2"]


@pytest.mark.timeout(20)
def test_processes_marked_with_a_swept_folder_are_killed(tmp_path: Path) -> None:
    folders.make("asyncrl-test-3", tmp_path).close()
    marked = os.environ | {folders.MARK: "asyncrl-test-3"}
    with subprocess.Popen(["sleep", "3600"], env=marked) as process:
        while b"asyncrl-test-3" not in Path(f"/proc/{process.pid}/environ").read_bytes():
            pass  # it is not a program of its own yet

        folders.sweep(tmp_path)

        assert process.wait() == -9


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)

    with pytest.raises(ConfigError, match="others may write to it"):
        folders.make("asyncrl-test-4", tmp_path)


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="set TMPDIR"):
        folders.make("asyncrl-test-5", tmp_path / "file")
