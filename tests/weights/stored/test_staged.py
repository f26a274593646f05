"""A complete version is held, or none: never a mix, and never one that differs from the trainer's."""

import pytest
import torch
from msgspec.structs import replace

from asyncrl.errors import TransferError
from asyncrl.messages.weights import StoredWeights
from asyncrl.weights.contents.header import Checksum
from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.shared import SharedTensors
from asyncrl.weights.staging import Staging
from asyncrl.weights.stored import stream
from asyncrl.weights.stored.staged import StagedVersion, digest
from tests.weights.shared_memory import shared_memory
from tests.weights.stored.versions import LAYOUT, anchor, contents, delta, parts, tensors


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PART_BYTES", 40)


def read(staged: StagedVersion, weights: StoredWeights, new: Staging, base: Staging | None = None) -> None:
    staged.begin(weights)
    for part in parts(new, base)[staged.next_part :]:
        staged.read(memoryview(part))
    staged.finish()


def holds(staged: StagedVersion, version: int) -> bool:
    expected = contents(version)
    return all(torch.equal(staged.tensors[name], tensor) for name, tensor in expected.tensors.items())


def test_an_anchor_and_the_deltas_after_it_are_held_bit_for_bit() -> None:
    staged = StagedVersion(LAYOUT)

    read(staged, anchor(3), contents(3))
    assert holds(staged, 3)
    for version in (4, 5):
        read(staged, delta(version), contents(version), contents(version - 1))
        assert holds(staged, version)
    assert staged.digest == anchor(5).digest


def test_nothing_is_held_before_the_first_version_and_while_a_file_is_read() -> None:
    staged = StagedVersion(LAYOUT)
    with pytest.raises(TransferError, match="no complete policy version"):
        staged.tensors  # noqa: B018
    read(staged, anchor(3), contents(3))
    staged.begin(delta(4))
    with pytest.raises(TransferError, match="no complete policy version"):
        staged.tensors  # noqa: B018


def test_a_file_is_continued_at_the_part_that_is_missing() -> None:
    staged, encoded = StagedVersion(LAYOUT), parts(contents(3), None)
    staged.begin(anchor(3))
    for part in encoded[:3]:
        staged.read(memoryview(part))

    assert (staged.unfinished, staged.next_part) == (anchor(3), 3)
    read(staged, anchor(3), contents(3))
    assert holds(staged, 3)


def test_another_file_begins_anew() -> None:
    staged = StagedVersion(LAYOUT)
    staged.begin(anchor(3))
    staged.read(memoryview(parts(contents(3), None)[0]))

    read(staged, anchor(5), contents(5))

    assert holds(staged, 5)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        pytest.param(delta(5), "another base", id="a gap"),
        pytest.param(replace(anchor(3), layout_hash="0" * 64), "different models", id="another layout"),
        pytest.param(replace(anchor(3), format=2), "format 2", id="a newer encoding"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_before_it_changes_anything(wrong: StoredWeights, problem: str) -> None:
    staged = StagedVersion(LAYOUT)
    read(staged, anchor(3), contents(3))
    with pytest.raises(TransferError, match=problem):
        staged.begin(wrong)
    assert holds(staged, 3)


def test_a_version_that_is_not_the_trainers_is_not_held() -> None:
    staged = StagedVersion(LAYOUT)
    with pytest.raises(TransferError, match="version 3 is damaged"):
        read(staged, anchor(3), contents(4))
    assert (staged.digest, staged.unfinished) == ("", None)


def test_a_file_that_ends_early_is_not_held() -> None:
    staged = StagedVersion(LAYOUT)
    staged.begin(anchor(3))
    staged.read(memoryview(parts(contents(3), None)[0]))
    with pytest.raises(TransferError, match="digest is that of a part"):
        staged.finish()
    assert staged.digest == ""


def test_after_a_damaged_part_the_file_must_be_read_anew() -> None:
    staged = StagedVersion(LAYOUT)
    staged.begin(anchor(3))
    with pytest.raises(TransferError, match="damaged"):
        staged.read(memoryview(b"\x08\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff"))
    with pytest.raises(TransferError, match="no file was begun"):
        staged.read(memoryview(parts(contents(3), None)[0]))


def test_closing_frees_the_memory_that_an_engines_processes_map() -> None:
    before, staged = shared_memory(), StagedVersion(LAYOUT, is_shared=True)
    read(staged, anchor(3), contents(3))
    assert holds(staged, 3)
    assert all(
        torch.equal(SharedTensors.locate(staged.tensors).map()[name], staged.tensors[name]) for name in tensors(3)
    )

    staged.close()
    staged.close()

    assert shared_memory() == before
    with pytest.raises(TransferError, match="no complete policy version"):
        staged.tensors  # noqa: B018


def test_the_layout_is_compared_by_its_hash() -> None:
    other = StagedVersion(Layout([TensorSpec(name="embed", shape=(3,), dtype="float32")], 64))
    with pytest.raises(TransferError, match="different models, or different weights"):
        other.begin(anchor(3))


# ── digest ──────────────────────────────────────────────────────────────────────────────────────
# Equal versions of one layout have equal digests, and no others.


SPEC = TensorSpec(name="embed", shape=(5, 3), dtype="float32")
CHECKSUM = Checksum(torch.device("cpu"))


def test_one_bit_changes_the_digest() -> None:
    one, other = Staging(Layout([SPEC], 64)), Staging(Layout([SPEC], 64))
    assert digest(one, CHECKSUM) == digest(other, CHECKSUM)
    other.buckets[0][17] ^= 1
    assert digest(one, CHECKSUM) != digest(other, CHECKSUM)


def test_minus_zero_is_not_zero() -> None:
    one, other = Staging(Layout([SPEC], 64)), Staging(Layout([SPEC], 64))
    other.tensors["embed"][0, 0] = -0.0
    assert digest(one, CHECKSUM) != digest(other, CHECKSUM)


def test_the_same_bytes_of_another_layout_have_another_digest() -> None:
    renamed = TensorSpec(name="head", shape=(5, 3), dtype="float32")
    assert digest(Staging(Layout([SPEC], 64)), CHECKSUM) != digest(Staging(Layout([renamed], 64)), CHECKSUM)
