"""What a manifest says of the files beside it, read without the trainer's libraries."""

import hashlib
from pathlib import Path

import msgspec
import pytest

from asyncrl.errors import LedgerError
from asyncrl.files.checkpoints import (
    MANIFEST,
    FileEntry,
    ListedFiles,
    file_entry,
    newest_complete,
    read_manifest,
    require_digests,
    require_sizes,
    step_folder,
    step_folders,
    step_name,
    step_of,
)


def write_checkpoint(directory: Path, step: int, content: bytes = b"weights") -> Path:
    folder = step_folder(directory, step)
    folder.mkdir(parents=True)
    (folder / "model").write_bytes(content)
    listed = ListedFiles(files={"model": file_entry(folder / "model")})
    (folder / MANIFEST).write_bytes(msgspec.json.encode(listed))
    return folder


def test_a_file_is_listed_with_its_size_and_digest(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 3)
    expected = FileEntry(7, hashlib.sha256(b"weights").hexdigest())
    assert read_manifest(folder, ListedFiles).files == {"model": expected}


def test_a_file_that_differs_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 3)
    files = read_manifest(folder, ListedFiles).files
    require_sizes(folder, files)
    require_digests(folder, files)
    (folder / "model").write_bytes(b"WEIGHTS")
    require_sizes(folder, files)
    with pytest.raises(LedgerError, match="model differs from what was written: expected sha256"):
        require_digests(folder, files)
    (folder / "model").write_bytes(b"w")
    with pytest.raises(LedgerError, match="model: expected 7 bytes, got 1; resume from an older checkpoint"):
        require_sizes(folder, files)
    (folder / "model").unlink()
    with pytest.raises(LedgerError, match="model is missing"):
        require_sizes(folder, files)


@pytest.mark.parametrize(("manifest", "problem"), [(None, "is incomplete"), (b"{", "is damaged"), (b"\xff", "damaged")])
def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path, manifest: bytes | None, problem: str) -> None:
    if manifest is not None:
        (tmp_path / MANIFEST).write_bytes(manifest)
    with pytest.raises(LedgerError, match=f"{MANIFEST}.*{problem}"):
        read_manifest(tmp_path, ListedFiles)


def test_folders_are_ordered_by_their_steps(tmp_path: Path) -> None:
    for step in (1_000_000, 20, 3):
        write_checkpoint(tmp_path, step)
    (tmp_path / "step_x").mkdir()
    assert list(step_folders(tmp_path)) == [3, 20, 1_000_000]
    assert (step_name(20), step_of(step_name(1_000_000))) == ("step_000020", 1_000_000)
    assert (step_of("step_000020"), step_of("000020"), step_of("step_x")) == (20, -1, -1)


def test_the_newest_complete_checkpoint_is_found_behind_incomplete_ones(tmp_path: Path) -> None:
    assert newest_complete(tmp_path) is None
    for step in (3, 20, 30):
        write_checkpoint(tmp_path, step)
    (tmp_path / "step_000030" / MANIFEST).unlink()
    (tmp_path / "step_000020" / "model").write_bytes(b"")
    assert newest_complete(tmp_path) == (3, tmp_path / "step_000003")
