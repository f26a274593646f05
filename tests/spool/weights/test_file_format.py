"""A file describes itself; one that is cut off or changed is refused with its path and the offset."""

import zlib
from pathlib import Path

import pytest

from asyncrl.errors import LedgerError
from asyncrl.messages.weights import StoredWeights
from asyncrl.spool.weights.file_format import HEADER, PART, encode_header, encode_part_head, scan

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
