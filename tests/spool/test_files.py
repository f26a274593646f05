"""Only named files are served, by the digest of all their bytes."""

import hashlib
from pathlib import Path

import pytest

from asyncrl.messages.files import FileDigest
from asyncrl.spool import files as module
from asyncrl.spool.files import MAX_PART_BYTES, FileServer
from tests.files.test_checkpoints import write_checkpoint

CONTENT = b"0123456789"
SHA256 = hashlib.sha256(CONTENT).digest()


@pytest.fixture
def server(tmp_path: Path) -> FileServer:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(CONTENT)
    (tmp_path / "model" / "secret").write_bytes(b"not served")
    return FileServer({str(tmp_path / "model"): ["weights"]}, tmp_path / "digests.json", tmp_path / "checkpoints")


def test_a_listed_file_is_read_in_parts(server: FileServer, tmp_path: Path) -> None:
    assert list(server.list(str(tmp_path / "model"))) == [FileDigest("weights", 10, SHA256)]
    assert server.read(SHA256, 0, 4) + server.read(SHA256, 4, 100) == CONTENT


def test_nothing_else_is_served(server: FileServer, tmp_path: Path) -> None:
    assert list(server.list(str(tmp_path))) == []
    assert server.read(SHA256, 0, 4) == b"", "it was not listed"
    list(server.list(str(tmp_path / "model")))
    assert server.read(hashlib.sha256(b"not served").digest(), 0, 4) == b""
    assert server.read(SHA256, -1, 4) == server.read(SHA256, 0, MAX_PART_BYTES + 1) == b""


def test_a_file_is_hashed_again_only_if_it_has_changed(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "model")
    list(server.list(folder))
    later = FileServer({folder: ["weights"]}, tmp_path / "digests.json", tmp_path / "checkpoints")
    with monkeypatch.context() as without_hashing:
        without_hashing.setattr(module, "hashlib", None)
        assert [file.sha256 for file in later.list(folder)] == [SHA256]
    (tmp_path / "model" / "weights").write_bytes(CONTENT * 2)
    assert [file.sha256 for file in later.list(folder)] == [hashlib.sha256(CONTENT * 2).digest()]


def test_damaged_digests_are_computed_again(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "digests.json").write_text("{")
    again = FileServer({str(tmp_path / "model"): ["weights"]}, tmp_path / "digests.json", tmp_path / "checkpoints")
    assert [file.sha256 for file in again.list(str(tmp_path / "model"))] == [SHA256]


def test_the_newest_complete_checkpoint_is_listed_with_the_digests_of_its_manifest(
    server: FileServer, tmp_path: Path
) -> None:
    directory = tmp_path / "checkpoints"
    assert list(server.list(str(directory))) == []
    write_checkpoint(directory, 3, b"older")
    write_checkpoint(directory, 20, CONTENT)
    (write_checkpoint(directory, 30) / "model").unlink()
    listed = {file.name: file for file in server.list(str(directory))}
    assert list(listed) == ["step_000020/manifest.json", "step_000020/model"]
    assert listed["step_000020/model"] == FileDigest("step_000020/model", 10, SHA256)
    manifest = listed["step_000020/manifest.json"]
    assert server.read(manifest.sha256, 0, manifest.size) == (directory / manifest.name).read_bytes()
    assert server.read(SHA256, 0, 100) == CONTENT
