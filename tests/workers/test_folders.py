"""Folders of workers: locked while they are in use, and found when nobody holds them any more."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
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


# ── process tree ──────────────────────────────────────────────────────────────────────────────────
# Processes below another one.


SCRIPT = "sleep 424242 & sh -c 'sleep 424242 & echo begun; wait' & wait"


@pytest.fixture
def mark() -> str:
    """One of this test alone: others run at the same time."""
    return f"of-test-{uuid.uuid4().hex}"


@pytest.fixture
def shell(mark: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A shell with a child, and a child with a child."""
    environment = os.environ | {"TREE": mark}
    with subprocess.Popen(["sh", "-c", SCRIPT], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        folders.kill([process.pid, *(below.pid for below in folders.below(process.pid))])


@pytest.mark.parametrize("has_children_files", [False, folders.HAS_CHILDREN_FILES])
def test_children_and_theirs_are_found_parents_first(
    shell: "subprocess.Popen[bytes]", has_children_files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "HAS_CHILDREN_FILES", has_children_files)

    found = folders.below(shell.pid)

    assert [process.parent == shell.pid for process in found] == [True, True, False]
    assert found[2].parent in (found[0].pid, found[1].pid)
    assert all(process.threads == 1 for process in found)
    assert 0 < folders.memory_bytes(found) <= sum(process.resident_bytes for process in found)


def test_processes_are_found_by_their_environment(shell: "subprocess.Popen[bytes]", mark: str) -> None:
    assert set(folders.marked(f"TREE={mark}")) == {
        shell.pid,
        *(process.pid for process in folders.below(shell.pid)),
    }
    assert folders.marked("TREE=of-another-test") == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_a_process_has_ended_before_its_parent_has_taken_its_exit_code() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert folders.has_ended(process.pid)
    assert folders.has_ended(process.pid)
    assert not folders.has_ended(os.getpid())


def test_a_process_that_is_gone_is_neither_found_nor_an_error() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()

    assert folders.below(gone.pid) == []
    folders.kill([gone.pid])
    assert folders.memory_bytes([folders.Process(gone.pid, 1, 1, 4096)]) == 4096
