"""A file describes itself; one that is cut off or changed is refused with its path and the offset."""

import errno
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from asyncrl.errors import LedgerError
from asyncrl.messages.weights import (
    FetchedWeights,
    FetchWeights,
    ListWeights,
    PutWeights,
    PutWeightsDone,
    StoredWeights,
    WeightsFile,
    WeightsList,
)
from asyncrl.spool.weights import HEADER, PART, WeightStore, encode_header, encode_part_head, scan, superseded

WEIGHTS = StoredWeights(7, "layout", "digest", 1, base_version=6, base_digest="before")
PAYLOADS = [b"first part", b"", b"third"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "000007.weights"
    parts = (
        encode_part_head(number, memoryview(payload), zlib.crc32(payload)) + payload
        for number, payload in enumerate(PAYLOADS)
    )
    path.write_bytes(encode_header(WEIGHTS) + b"".join(parts))
    return path


def test_a_file_tells_its_version_and_where_its_parts_are(path: Path) -> None:
    found = scan(path)

    raw = path.read_bytes()
    assert found.weights == WEIGHTS
    assert [raw[part.offset : part.offset + part.length] for part in found.parts] == PAYLOADS
    assert [part.crc32 for part in found.parts] == [zlib.crc32(payload) for payload in PAYLOADS]


@pytest.mark.parametrize("lost", [1, 5, 5 + PART.size - 1, 5 + PART.size + 3])
def test_a_file_that_is_cut_off_within_a_part_is_refused(path: Path, lost: int) -> None:
    path.write_bytes(path.read_bytes()[:-lost])
    with pytest.raises(LedgerError, match=r"000007\.weights is damaged at offset \d+"):
        scan(path)


def test_another_file_is_refused(path: Path) -> None:
    path.write_bytes(b"not weights")
    with pytest.raises(LedgerError, match="does not hold weights in format 1"):
        scan(path)


def test_a_changed_description_is_refused(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[HEADER.size + 3] ^= 1
    path.write_bytes(raw)
    with pytest.raises(LedgerError, match=f"offset {HEADER.size} is damaged"):
        scan(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot read"):
        scan(tmp_path / "none.weights")


# ── test retention ────────────────────────────────────────────────────────────────────────────
# A rollout that joins, and one that is behind, find what they need; older files go.


def anchor(version: int) -> StoredWeights:
    return StoredWeights(version, "layout", f"v{version}", 1)


def delta(version: int) -> StoredWeights:
    return StoredWeights(version, "layout", f"v{version}", 1, base_version=version - 1, base_digest=f"v{version - 1}")


def test_everything_since_the_only_anchor_is_kept() -> None:
    assert superseded([]) == []
    assert superseded([anchor(0), delta(1), delta(2)]) == []


def test_an_anchor_stays_for_those_that_read_it_until_the_second_one_after_it_is_complete() -> None:
    stored = [anchor(0), delta(1), delta(2), anchor(2), delta(3)]
    assert superseded(stored) == []
    assert superseded([*stored, anchor(3)]) == [0]


def test_deltas_go_with_the_third_anchor_after_them() -> None:
    stored = [delta(1), delta(2), anchor(2), delta(3), delta(4), anchor(4), delta(5), anchor(5)]
    assert superseded(stored) == [0, 1, 2]


# ── test store ────────────────────────────────────────────────────────────────────────────────
# Versions survive a restart when they are complete; what is damaged is never served.

MISSING = FetchedWeights(-1, memoryview(b""), 0)


def store_delta(version: int) -> StoredWeights:
    return replace(anchor(version), base_version=version - 1, base_digest=f"v{version - 1}")


def parts(weights: StoredWeights, *payloads: bytes) -> list[PutWeights]:
    last = len(payloads) - 1
    return [
        PutWeights(weights, number, zlib.crc32(payload), memoryview(payload), is_last=number == last)
        for number, payload in enumerate(payloads)
    ]


def put(store: WeightStore, weights: StoredWeights, *payloads: bytes) -> None:
    for part in parts(weights, *payloads):
        assert store.answer(part) == PutWeightsDone(part.part)


def read(store: WeightStore, weights: StoredWeights, part: int) -> bytes:
    found = store.answer(FetchWeights(weights, part))
    assert isinstance(found, FetchedWeights)
    assert found.part == part
    assert zlib.crc32(found.payload) == found.crc32
    return bytes(found.payload)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool" / "weights"


@pytest.fixture
def store(folder: Path) -> Iterator[WeightStore]:
    with closing(WeightStore(folder)) as store:
        yield store


def test_a_complete_version_is_listed_and_served_part_by_part(store: WeightStore) -> None:
    put(store, anchor(0), b"abc", b"de")

    assert store.answer(ListWeights()) == WeightsList([WeightsFile(anchor(0), num_parts=2, num_bytes=5)])
    assert [read(store, anchor(0), part) for part in (1, 0)] == [b"de", b"abc"]


def test_a_version_that_is_being_put_is_not_there_yet(store: WeightStore) -> None:
    store.put(parts(anchor(0), b"abc", b"de")[0])

    assert store.files == []
    assert store.read(FetchWeights(anchor(0), 0)) == MISSING


def test_versions_survive_a_restart_and_unfinished_ones_do_not(store: WeightStore, folder: Path) -> None:
    put(store, anchor(0), b"abc")
    put(store, store_delta(1), b"d", b"e")
    store.put(parts(store_delta(2), b"f", b"g")[0])

    again = WeightStore(folder)

    assert again.files == [WeightsFile(anchor(0), 1, 3), WeightsFile(store_delta(1), 2, 2)]
    assert read(again, store_delta(1), 1) == b"e"
    assert names(folder) == ["000000.weights", "000001.weights"]


def test_numbers_go_on_after_a_restart(store: WeightStore, folder: Path) -> None:
    put(store, anchor(0), b"abc")
    again = WeightStore(folder)
    put(again, store_delta(1), b"d")
    assert [file.weights for file in again.files] == [anchor(0), store_delta(1)]


def test_a_new_anchor_removes_the_one_before_the_last_and_what_led_to_it(store: WeightStore, folder: Path) -> None:
    for weights in (anchor(0), store_delta(1), anchor(1), store_delta(2), anchor(2)):
        put(store, weights, b"x")

    assert [file.weights for file in store.files] == [store_delta(1), anchor(1), store_delta(2), anchor(2)]
    assert names(folder) == [f"{number:06d}.weights" for number in (1, 2, 3, 4)]
    assert store.read(FetchWeights(anchor(0), 0)) == MISSING


def test_the_anchor_before_stays_until_the_new_one_is_complete(store: WeightStore) -> None:
    put(store, anchor(0), b"x")
    store.put(parts(anchor(1), b"y", b"z")[0])
    assert read(store, anchor(0), 0) == b"x"


def test_a_version_that_is_put_again_takes_the_place_of_its_file(store: WeightStore, folder: Path) -> None:
    put(store, anchor(0), b"x")
    put(store, store_delta(1), b"old")
    put(store, store_delta(1), b"new")

    assert [file.weights for file in store.files] == [anchor(0), store_delta(1)]
    assert read(store, store_delta(1), 0) == b"new"
    assert names(folder) == ["000000.weights", "000002.weights"]


def test_a_version_may_begin_again_before_its_end(store: WeightStore) -> None:
    store.put(parts(anchor(0), b"x", b"y")[0])
    put(store, anchor(0), b"1", b"2")
    assert read(store, anchor(0), 1) == b"2"


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        pytest.param(parts(anchor(0), b"a", b"b", b"c")[2], "part 2 .* out of order", id="a part is skipped"),
        pytest.param(parts(anchor(1), b"a", b"b")[1], "part 1 .* out of order", id="of another version"),
        pytest.param(replace(parts(anchor(0), b"a", b"b")[1], crc32=1), "part 1 .* damaged", id="damaged"),
    ],
)
def test_a_wrong_part_is_refused_and_its_version_forgotten(store: WeightStore, wrong: PutWeights, problem: str) -> None:
    first, second = parts(anchor(0), b"a", b"b")
    store.put(first)
    with pytest.raises(LedgerError, match=problem):
        store.put(wrong)
    with pytest.raises(LedgerError, match="out of order"):
        store.put(second)


def test_a_part_that_changed_on_disk_is_not_served_and_its_version_is_listed_no_longer(
    store: WeightStore, folder: Path
) -> None:
    put(store, anchor(0), b"abc", b"de")
    path = folder / "000000.weights"
    path.write_bytes(path.read_bytes()[:-1] + b"!")

    assert read(store, anchor(0), 0) == b"abc"
    with capture_logs() as logs:
        assert store.read(FetchWeights(anchor(0), 1)) == MISSING
    assert [entry["event"] for entry in logs] == ["spool.weights_unreadable"]
    assert store.files == []


def test_a_file_that_was_cut_off_is_left_out_with_a_warning(store: WeightStore, folder: Path) -> None:
    put(store, anchor(7), b"abc")
    path = folder / "000000.weights"
    path.write_bytes(path.read_bytes()[:-1])

    with capture_logs() as logs:
        again = WeightStore(folder)

    assert again.files == []
    assert [entry["event"] for entry in logs] == ["spool.weights_unreadable"]
    assert str(path) in logs[0]["cause"]


@pytest.mark.parametrize("part", [-1, 2, 1 << 40])
def test_a_part_that_never_was_is_missing(store: WeightStore, part: int) -> None:
    put(store, anchor(0), b"abc", b"de")
    assert store.read(FetchWeights(anchor(0), part)) == MISSING


def test_a_full_disk_is_the_answer_to_a_put(store: WeightStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("asyncrl.spool.weights.os.fsync", full)
    answer = store.answer(parts(anchor(0), b"abc")[0])

    assert isinstance(answer, PutWeightsDone)
    assert "No space left on device" in answer.problem
    assert store.files == []


def test_closing_forgets_what_was_not_put_to_its_end(store: WeightStore, folder: Path) -> None:
    store.put(parts(anchor(0), b"x", b"y")[0])
    store.close()
    store.close()
    assert names(folder) == []
