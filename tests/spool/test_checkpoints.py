"""A copy of a checkpoint appears complete or not at all, and goes on where it was interrupted."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from asyncrl.files.checkpoints import BEST, MANIFEST, FileEntry, ListedFiles, step_folders
from asyncrl.messages.files import (
    CheckpointWanted,
    FileDigest,
    OfferCheckpoint,
    PutCheckpointPart,
    PutCheckpointPartDone,
)
from asyncrl.spool import checkpoints as module
from asyncrl.spool.checkpoints import MAX_PART_BYTES, CheckpointStore, FileServer
from tests.files.test_checkpoints import write_checkpoint

FILES = {"model.safetensors": b"weights", "trainer/optimizer.safetensors": b"moments", "empty": b""}


def offer(
    step: int = 60, files: Mapping[str, bytes] = FILES, kept: tuple[int, ...] = (), best: bytes = b""
) -> OfferCheckpoint:
    entries = {name: FileEntry(len(content), hashlib.sha256(content).hexdigest()) for name, content in files.items()}
    return OfferCheckpoint(step, msgspec.json.encode(ListedFiles(files=entries)), list(kept), best)


def put(store: CheckpointStore, name: str, content: bytes, offset: int = 0, step: int = 60) -> str:
    done = store.answer(PutCheckpointPart(step, name, offset, memoryview(content)))
    assert isinstance(done, PutCheckpointPartDone)
    return done.problem


def wanted(store: CheckpointStore, offered: OfferCheckpoint) -> dict[str, int]:
    answer = store.answer(offered)
    assert isinstance(answer, CheckpointWanted)
    assert answer.problem == ""
    return answer.offsets


def copy(store: CheckpointStore, offered: OfferCheckpoint, files: Mapping[str, bytes] = FILES) -> None:
    for name, offset in wanted(store, offered).items():
        assert put(store, name, files[name][offset:], offset, offered.step) == ""
    assert wanted(store, offered) == {}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_appears_once_every_file_is_there(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    assert wanted(store, offer()) == {"model.safetensors": 0, "trainer/optimizer.safetensors": 0}
    assert put(store, "model.safetensors", b"weights") == ""
    assert wanted(store, offer()) == {"trainer/optimizer.safetensors": 0}
    assert step_folders(tmp_path / "checkpoints") == {}
    assert put(store, "trainer/optimizer.safetensors", b"moments") == ""
    assert wanted(store, offer()) == {}
    assert contents(tmp_path / "checkpoints" / "step_000060") == FILES | {MANIFEST: offer().manifest}
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_000060"]


def test_a_new_process_goes_on_in_the_middle_of_a_file(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    wanted(store, offer())
    put(store, "model.safetensors", b"wei")
    later = CheckpointStore(tmp_path)
    assert wanted(later, offer())["model.safetensors"] == 3
    copy(later, offer())
    assert contents(tmp_path / "step_000060")["model.safetensors"] == b"weights"


def test_a_damaged_file_is_wanted_from_its_beginning(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    wanted(store, offer())
    put(store, "model.safetensors", b"WEIGHTS")
    assert wanted(store, offer())["model.safetensors"] == 0
    copy(store, offer())
    assert contents(tmp_path / "step_000060")["model.safetensors"] == b"weights"


def test_another_checkpoint_of_the_same_step_begins_anew_and_replaces_the_copy(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    copy(store, offer())
    other = FILES | {"model.safetensors": b"WEIGHTS"}
    assert wanted(store, offer(files=other))["model.safetensors"] == 0
    assert contents(tmp_path / "step_000060")["model.safetensors"] == b"weights"
    copy(store, offer(files=other), other)
    assert contents(tmp_path / "step_000060")["model.safetensors"] == b"WEIGHTS"


def test_copies_that_the_trainer_no_longer_keeps_are_removed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (10, 20, 30):
        copy(store, offer(step, kept=(10, 20, 30)))
    wanted(store, offer(40))
    copy(store, offer(30, kept=(10, 30), best=b'{"step":10}'))
    assert list(step_folders(tmp_path)) == [10, 30]
    assert (tmp_path / BEST).read_bytes() == b'{"step":10}'
    assert not list(tmp_path.glob(".step_*"))


@pytest.mark.parametrize(
    "name", ["../model", "/etc/passwd", "a/../b", "a/b/c", "", ".", "./a", MANIFEST, "a//b", "a\0b"]
)
def test_a_name_outside_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    answer = CheckpointStore(tmp_path / "checkpoints").answer(offer(files={name: b"x"}))
    problem = "the manifest of step 60 names a file that is none of a checkpoint"
    assert answer == CheckpointWanted(60, {}, problem)
    assert not list(tmp_path.rglob("*"))


def test_an_offer_that_is_no_manifest_is_refused(tmp_path: Path) -> None:
    answer = CheckpointStore(tmp_path).answer(OfferCheckpoint(60, b"{", []))
    assert isinstance(answer, CheckpointWanted)
    assert answer.problem.startswith("the manifest of step 60 is damaged")


def test_a_part_that_does_not_follow_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    assert put(store, "model.safetensors", b"weights") == "model.safetensors of step 60 was not offered"
    wanted(store, offer())
    put(store, "model.safetensors", b"wei")
    problem = put(store, "model.safetensors", b"ts", 5)
    assert problem == "model.safetensors of step 60: expected bytes from 3, got those from 5"
    assert wanted(store, offer())["model.safetensors"] == 3
    assert put(store, "other", b"x") == "other of step 60 was not offered"


def test_more_than_the_manifest_says_is_not_stored(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    wanted(store, offer())
    too_much = put(store, "model.safetensors", b"weights and more")
    assert too_much == "model.safetensors of step 60 is larger than its manifest says"
    assert wanted(store, offer())["model.safetensors"] == 0


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    answer = CheckpointStore(tmp_path / "checkpoints").answer(offer())
    assert isinstance(answer, CheckpointWanted)
    assert f"cannot write {tmp_path}/checkpoints" in answer.problem


# ── test files ────────────────────────────────────────────────────────────────────────────────
# Only named files are served, by the digest of all their bytes.

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
