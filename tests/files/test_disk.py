import errno
from pathlib import Path

import pytest

from asyncrl.errors import RunFailed
from asyncrl.files.disk import needed


def write(path: Path, error: Exception) -> None:
    with needed(path):
        raise error


def test_a_disk_error_names_the_file_the_cause_and_the_remedy() -> None:
    with pytest.raises(RunFailed) as raised:
        write(Path("runs/a/metrics.jsonl"), OSError(errno.ENOSPC, "No space left on device"))

    assert str(raised.value) == (
        "cannot write runs/a/metrics.jsonl: No space left on device; free space or repair the disk, then resume the run"
    )


def test_an_error_without_an_errno_keeps_its_text() -> None:
    with pytest.raises(RunFailed, match="cannot write a: torn apart;"):
        write(Path("a"), OSError("torn apart"))


def test_other_exceptions_pass_unchanged() -> None:
    with pytest.raises(ZeroDivisionError):
        write(Path("a"), ZeroDivisionError())
