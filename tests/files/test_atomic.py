import errno
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from asyncrl.errors import ConfigError, RunFailed
from asyncrl.files.atomic import cause, check_output, needed, output, remove_folder, replace_folder, replacing


@pytest.mark.parametrize("durable", [True, False])
def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "summary.json"
    path.write_text("old")

    with replacing(path, durable=durable) as unfinished:
        unfinished.write_text("ne")
        assert path.read_text() == "old"
        unfinished.write_text("new")

    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text("old")

    with pytest.raises(InterruptedError):
        write_half(path)

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def write_half(path: Path) -> None:
    with replacing(path) as unfinished:
        unfinished.write_text("ne")
        raise InterruptedError


def test_missing_folders_are_created(tmp_path: Path) -> None:
    with replacing(tmp_path / "a" / "b" / "c.json") as unfinished:
        unfinished.write_text("new")

    assert (tmp_path / "a" / "b" / "c.json").read_text() == "new"


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "real" / "report.html", tmp_path / "report.html"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)

    with replacing(link) as unfinished:
        unfinished.write_text("new")

    assert link.is_symlink()
    assert target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


def test_a_link_to_nothing_makes_its_file(tmp_path: Path) -> None:
    link = tmp_path / "latest.html"
    link.symlink_to("report.html")

    with replacing(link) as unfinished:
        unfinished.write_text("new")

    assert link.is_symlink()
    assert (tmp_path / "report.html").read_text() == "new"


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_fifo_is_written_into(tmp_path: Path, is_linked: bool) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "link").symlink_to(fifo)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(fifo.read_text)
        with replacing(tmp_path / "link" if is_linked else fifo) as unfinished:
            unfinished.write_text("all of it")
        assert read.result(timeout=10) == "all of it"
    assert fifo.is_fifo()


def test_a_device_is_written_into_and_stays_one(tmp_path: Path) -> None:
    device = tmp_path / "null"  # The numbers of /dev/null, which no test may touch.
    try:
        os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        device.open("wb").close()
    except OSError as error:
        pytest.skip(f"devices cannot be made and opened here: {error}")

    with replacing(device) as unfinished:
        unfinished.write_text("nothing")

    assert device.is_char_device()
    assert list(tmp_path.iterdir()) == [device]


def test_a_folder_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), replacing(tmp_path):
        pytest.fail("there is nothing to write to")


def test_a_folder_appears_in_place_of_the_one_before(tmp_path: Path) -> None:
    folder, unfinished = tmp_path / "step", tmp_path / ".step.partial"
    for path, content in ((folder / "old", "old"), (unfinished / "inner" / "new", "new")):
        path.parent.mkdir(parents=True)
        path.write_text(content)
    replace_folder(unfinished, folder)
    assert list(tmp_path.iterdir()) == [folder]
    assert [path for path in folder.rglob("*") if path.is_file()] == [folder / "inner" / "new"]
    assert (folder / "inner" / "new").read_text() == "new"


def test_a_folder_vanishes_whole_before_any_of_its_files_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, unfinished = tmp_path / "step_000001", tmp_path / ".step_000001.partial"
    for path in (folder, unfinished):  # what a process that was killed while it removed one has left
        path.mkdir()
        (path / "model").write_text("weights", encoding="utf-8")
    seen = []
    remove = shutil.rmtree

    def rmtree(path: Path, *, ignore_errors: bool = False) -> None:
        seen.append((path.name, folder.exists()))
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    remove_folder(folder, unfinished)

    assert seen[-1] == (unfinished.name, False)
    assert list(tmp_path.iterdir()) == []


# ── test disk ─────────────────────────────────────────────────────────────────────────────────


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


# ── test output ───────────────────────────────────────────────────────────────────────────────


def test_a_file_is_replaced(tmp_path: Path) -> None:
    with output(tmp_path / "new" / "page.html") as unfinished:
        unfinished.write_text("new")

    assert (tmp_path / "new" / "page.html").read_text() == "new"


def test_a_folder_is_one_sentence(tmp_path: Path) -> None:
    sentence = f"cannot write {tmp_path}: it is a folder, not a file; give the path of a file that can be written"
    with pytest.raises(ConfigError) as failure, output(tmp_path):
        pytest.fail("there is nothing to write to")
    with pytest.raises(ConfigError) as early:
        check_output(tmp_path)

    assert str(failure.value) == str(early.value) == sentence


def test_a_place_that_cannot_exist_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write .*file/page\.html: (Not a directory|File exists); give"):
        output_write(tmp_path / "file" / "page.html")


def output_write(path: Path) -> None:
    with output(path) as unfinished:
        unfinished.write_text("new")


def test_a_path_that_can_be_written_is_no_error(tmp_path: Path) -> None:
    check_output(tmp_path / "page.html")
