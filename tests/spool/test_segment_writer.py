"""Records are written completely and in order, and are durable only after an fsync."""

import os
from pathlib import Path

import pytest

from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.spool.segment_format import Entry, scan, segment_path
from asyncrl.spool.segment_writer import SegmentWriter

SUMMARY = TrajectorySummary(
    num_tokens=1, prompt_tokens=1, oldest_version=0, newest_version=0, num_spans=1, finish_reason="stop"
)


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
