"""Processes below another one."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from asyncrl.workers import folders

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
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


def test_a_process_that_is_gone_is_neither_found_nor_an_error() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()

    assert folders.below(gone.pid) == []
    folders.kill([gone.pid])
    assert folders.memory_bytes([folders.Process(gone.pid, 1, 1, 4096)]) == 4096
