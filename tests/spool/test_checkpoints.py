"""A copy of a checkpoint appears complete or not at all, and goes on where it was interrupted."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from asyncrl.files.checkpoints import BEST, MANIFEST, FileEntry, ListedFiles, step_folders
from asyncrl.messages.files import CheckpointWanted, OfferCheckpoint, PutCheckpointPart, PutCheckpointPartDone
from asyncrl.spool.checkpoints import CheckpointStore

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
