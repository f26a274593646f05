import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from asyncrl.errors import LinkError
from asyncrl.files.lock import is_locked, locked

HOLDS = """
import sys
from pathlib import Path
from asyncrl.files.lock import locked
with locked(Path(sys.argv[1]), "held"):
    print("holds", flush=True)
    sys.stdin.read()
"""


def holder(path: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "holds\n"
    return process


def test_a_lock_is_held_by_one_process_and_names_it(tmp_path: Path) -> None:
    with holder(tmp_path / "lock") as other:
        assert is_locked(tmp_path / "lock")
        with (
            pytest.raises(LinkError, match=f"the run is served already \\(process {other.pid}\\)"),
            locked(tmp_path / "lock", "the run is served already"),
        ):
            pass
        other.kill()


def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    with holder(tmp_path / "lock") as other:
        other.kill()
        other.wait()
        with locked(tmp_path / "lock", "held"):
            assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    assert not is_locked(tmp_path / "lock")


def test_the_holder_may_end_while_another_waits(tmp_path: Path) -> None:
    with holder(tmp_path / "lock") as other:
        pauses: list[float] = []

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            other.kill()
            other.wait()

        with locked(tmp_path / "lock", "held", 10.0, sleep=sleep):
            assert len(pauses) == 1


def test_no_file_is_no_lock(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "lock")


def test_the_lock_of_another_user_which_cannot_be_tried_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may be shared with a group, which looks whether it goes on."""

    def refuse(*_: object) -> int:
        raise PermissionError

    for holds, expected in ((locked(tmp_path / "lock", "held"), True), (nullcontext(), False)):
        with holds, monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse)
            assert is_locked(tmp_path / "lock") == expected
