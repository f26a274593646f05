"""Pictures by digest in a file that nobody else can open."""

import hashlib
from pathlib import Path

import pytest

from asyncrl.errors import RunFailed
from asyncrl.messages.trajectory import Image
from asyncrl.spool.images import ImageStore


def image(content: bytes) -> Image:
    return Image(hashlib.sha256(content).digest(), 1, 1, len(content))


def test_each_distinct_picture_is_stored_once_and_read_by_digest(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "spool")
    for content in (b"red", b"blue", b"red"):
        store.add(image(content), content)
    assert len(store) == 2
    assert [store.read(image(content).digest) for content in (b"blue", b"red")] == [b"blue", b"red"]
    assert store.size(image(b"blue").digest) == 4
    assert store.read(bytes(32)) == b""
    assert store.size(bytes(32)) == 0
    store.close()


def test_it_leaves_no_file_behind_and_two_do_not_meet(tmp_path: Path) -> None:
    first, second = ImageStore(tmp_path), ImageStore(tmp_path)
    first.add(image(b"red"), b"red")
    second.add(image(b"blue"), b"blue")
    assert list(tmp_path.iterdir()) == []
    assert first.read(image(b"red").digest) == b"red"
    first.close()
    second.close()


def test_a_folder_that_cannot_be_made_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFailed, match="cannot write"):
        ImageStore(tmp_path / "file" / "spool")
