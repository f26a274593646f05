"""The segment format, byte by byte."""

import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import LedgerError
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.spool.segment_writer import Entry, Place, SegmentWriter, encode_head, encode_header, scan, segment_path

SUMMARY = TrajectorySummary(
    num_tokens=1, prompt_tokens=1, oldest_version=0, newest_version=0, num_spans=1, finish_reason="stop"
)
ENTRY = Entry(unit=Unit(7, 2, "held_out"), lease_id=(3 << 32) + 9, summary=SUMMARY, node="r0", incarnation="b1")


def record(payload: bytes, durable: int) -> bytes:
    return encode_head(ENTRY, len(payload), zlib.crc32(payload), durable) + payload


def write(directory: Path, *records: bytes) -> Path:
    path = segment_path(directory, 5)
    path.write_bytes(encode_header(5) + b"".join(records))
    return path


def test_a_header_is_sixteen_bytes_that_name_format_and_segment() -> None:
    assert encode_header(5) == b"arl.seg\n" + b"\x01\0" + b"\0\0" + b"\x05\0\0\0"


def test_a_scan_finds_the_entry_and_the_place_of_each_payload(tmp_path: Path) -> None:
    head = len(record(b"", 16))
    path = write(tmp_path, record(b"payload", 16), record(b"", 16))

    scanned = scan(path)

    assert [found.entry for found in scanned.records] == [ENTRY, ENTRY]
    assert scanned.records[0].place == Place(5, 16 + head, 7, zlib.crc32(b"payload"))
    assert (scanned.end, scanned.torn_bytes) == (16 + head + 7 + head, 0)


def test_invalid_bytes_above_every_later_durable_are_a_torn_tail(tmp_path: Path) -> None:
    """The disk may have only the second of two unacknowledged records."""
    first, second = record(b"first", 16), record(b"second", 16)
    path = write(tmp_path, bytes(len(first)), second)

    assert scan(path) == ([], 16, len(first) + len(second))


def test_invalid_bytes_below_a_later_durable_are_damage(tmp_path: Path) -> None:
    first = record(b"first", 16)
    path = write(tmp_path, bytes(len(first)), record(b"second", 16 + len(first)))

    with pytest.raises(LedgerError, match="damaged at offset 16"):
        scan(path)


@given(st.data())
def test_a_flipped_bit_is_never_read_as_a_record(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("flip")
    good = record(b"payload", 16)
    path = write(directory, good)
    raw = bytearray(path.read_bytes())
    raw[data.draw(st.integers(16, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)

    assert scan(path) == ([], 16, len(good))


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"cannot read .*: No such file"):
        scan(segment_path(tmp_path, 0))


# ── test segment writer ───────────────────────────────────────────────────────────────────────
# Records are written completely and in order, and are durable only after an fsync.


def entry(group_id: int) -> Entry:
    return Entry(unit=Unit(group_id, 0), lease_id=1, summary=SUMMARY, node="r0", incarnation="b1")


def test_durable_moves_only_with_a_sync(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, 3)
    before = writer.durable

    writer.add(entry(0), memoryview(b"payload"))
    writer.flush()

    assert writer.durable == before == 16
    assert writer.sync()
    assert writer.durable == writer.end == segment_path(tmp_path, 3).stat().st_size
    assert not writer.sync()
    writer.close()


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """writev may write less than requested, in the middle of a buffer; the rest must follow once."""
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, buffers: writev(fd, [b"".join(buffers)[:7]]))
    writer = SegmentWriter(tmp_path, 0)
    places = [writer.add(entry(i), memoryview(b"%d" % i * 20)) for i in range(5)]

    writer.sync()
    writer.close()

    assert [record.place for record in scan(segment_path(tmp_path, 0), sealed=True).records] == places


def test_a_segment_has_its_header_as_soon_as_it_has_its_name(tmp_path: Path) -> None:
    SegmentWriter(tmp_path, 12).close()

    assert [path.name for path in tmp_path.iterdir()] == ["segment_000012.seg"]
    assert scan(segment_path(tmp_path, 12), sealed=True) == ([], 16, 0)
