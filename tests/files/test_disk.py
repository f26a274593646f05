import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from asyncrl.errors import RunFailed
from asyncrl.files.disk import cause, needed


def write(path: Path, error: Exception) -> None:
    with needed(path):
        raise error


def test_a_disk_error_names_the_file_the_cause_and_the_remedy() -> None:
    with pytest.raises(RunFailed) as raised:
        write(Path("runs/a/metrics.jsonl"), OSError(errno.ENOSPC, "No space left on device"))

    assert str(raised.value) == (
        "cannot write runs/a/metrics.jsonl: No space left on device; free space or repair the disk, then start or "
        "resume the run"
    )


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written_is_not_told_to_make_space(number: int) -> None:
    with pytest.raises(RunFailed, match=r"; give a folder that can be written, or make this one so$"):
        write(Path("ro/x"), OSError(number, os.strerror(number)))


@pytest.mark.parametrize(("free", "said"), [(0, "disk I/O error: no space left on the disk"), (99, "disk I/O error")])
def test_a_full_disk_is_named_where_the_database_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, said: str
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_bavail=free, f_frsize=4096))
    assert cause(tmp_path / "ledger.sqlite", RuntimeError("disk I/O error")) == said


def test_a_disk_that_cannot_be_asked_leaves_the_error_as_it_is(tmp_path: Path) -> None:
    assert cause(tmp_path / "gone" / "ledger.sqlite", RuntimeError("disk I/O error")) == "disk I/O error"


def test_an_error_without_an_errno_keeps_its_text() -> None:
    with pytest.raises(RunFailed, match="cannot write a: torn apart;"):
        write(Path("a"), OSError("torn apart"))


def test_other_exceptions_pass_unchanged() -> None:
    with pytest.raises(ZeroDivisionError):
        write(Path("a"), ZeroDivisionError())
