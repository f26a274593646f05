"""Eviction of the payload cache."""

import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncrl.errors import LedgerError, RunFailed
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.spool.segment_writer import Entry, Place, scan, segment_path
from asyncrl.spool.segments import COPIED_BYTES, ENTRY_BYTES, PayloadCache, Segments, Shares, most_indexed, remove


def cached(cache: PayloadCache, segment: int, offset: int) -> bytes | None:
    payload = cache.get(segment, offset)
    return None if payload is None else bytes(payload)


def test_the_oldest_leave_when_the_bytes_are_used_up() -> None:
    cache = PayloadCache(max_bytes=2 * (4 + ENTRY_BYTES))

    for offset, size in enumerate((4, 4, 4)):
        cache.add(0, offset, memoryview(bytes(size)))

    assert cache.get(0, 0) is None
    assert cached(cache, 0, 1) == bytes(4)
    assert cached(cache, 0, 2) == bytes(4)


def test_a_payload_larger_than_the_cache_evicts_nothing() -> None:
    cache = PayloadCache(max_bytes=10 + ENTRY_BYTES)
    cache.add(0, 0, memoryview(b"small"))

    cache.add(0, 5, memoryview(bytes(11)))

    assert cached(cache, 0, 0) == b"small"
    assert cache.get(0, 5) is None


def test_bytes_of_forgotten_segments_are_free_again() -> None:
    cache = PayloadCache(max_bytes=2 * (5 + ENTRY_BYTES))
    cache.add(0, 0, memoryview(bytes(10)))
    cache.drop_below(1)

    cache.add(1, 0, memoryview(b"a" * 5))
    cache.add(1, 5, memoryview(b"b" * 5))

    assert cache.get(0, 0) is None
    assert (cached(cache, 1, 0), cached(cache, 1, 5)) == (b"a" * 5, b"b" * 5)


def test_a_small_payload_keeps_no_buffer_of_its_message_alive() -> None:
    """libzmq receives many small messages into one buffer, which each view would keep."""
    cache, message = PayloadCache(max_bytes=1 << 20), bytes(2 * COPIED_BYTES)
    cache.add(0, 0, memoryview(message)[:300])
    cache.add(0, 300, memoryview(message)[300 : 300 + COPIED_BYTES])

    small, large = cache.get(0, 0), cache.get(0, 300)
    assert small is not None
    assert large is not None
    assert small.obj is not message
    assert large.obj is message


# ── test segments ─────────────────────────────────────────────────────────────────────────────
# Durable payloads survive crashes, and damage is detected.

SUMMARY = TrajectorySummary(
    num_tokens=3, prompt_tokens=2, oldest_version=4, newest_version=5, num_spans=2, finish_reason="stop"
)


def entry(group_id: int, lease_id: int = 1) -> Entry:
    return Entry(unit=Unit(group_id, 0), lease_id=lease_id, summary=SUMMARY, node="r0", incarnation="b1")


def item(group_id: int, payload: bytes, lease_id: int = 1) -> tuple[Entry, memoryview]:
    return entry(group_id, lease_id), memoryview(payload)


def store(segments: Segments, *payloads: bytes, first: int = 0) -> list[Place]:
    """Store payloads durably, with units counted from ``first``."""
    places = segments.append([item(first + i, payload) for i, payload in enumerate(payloads)])
    segments.sync()
    return places


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 0x10
    path.write_bytes(raw)


@contextmanager
def disk_full_at(size: int) -> Iterator[None]:
    """Limit files of this process to ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_appended_payload_is_read_back_by_its_place(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "spool", cache_bytes=0)

    first, second = store(segments, b"alpha", b"beta" * 1000)

    assert bytes(segments.read(SpoolRef("s0", *first))) == b"alpha"
    assert segments.read(second) == b"beta" * 1000
    assert (second.segment, second.length) == (0, 4000)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    groups=st.lists(st.lists(st.binary(max_size=300), max_size=6), max_size=6),
    segment_bytes=st.integers(1, 2000),
)
def test_write_scan_and_read_agree(tmp_path: Path, groups: list[list[bytes]], segment_bytes: int) -> None:
    directory = tmp_path / "spool"
    shutil.rmtree(directory, ignore_errors=True)
    segments = Segments(directory, segment_bytes=segment_bytes, cache_bytes=0)
    payloads = [payload for group in groups for payload in group]
    places: list[Place] = []
    for group in groups:
        places += store(segments, *group, first=len(places))
    segments.close()

    scanned = [record for path in sorted(directory.iterdir()) for record in scan(path, sealed=True).records]
    again = Segments(directory, cache_bytes=0)

    assert [record.entry for record in scanned] == [entry(i) for i in range(len(payloads))]
    assert [record.place for record in scanned] == places
    assert [bytes(again.read(place)) for place in places] == payloads
    again.close()


def test_more_buffers_than_one_writev_takes_are_all_written(tmp_path: Path) -> None:
    segments = Segments(tmp_path, cache_bytes=0)

    places = store(segments, *(b"%d" % i for i in range(1500)))

    assert [bytes(segments.read(place)) for place in places] == [b"%d" % i for i in range(1500)]
    assert segments.num_syncs == 1


def test_one_sync_covers_many_appends_and_an_idle_one_costs_nothing(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    for group_id in range(50):
        segments.append([item(group_id, b"x")])

    segments.sync()
    segments.sync()

    assert segments.num_syncs == 1


def test_a_unit_of_one_lease_is_stored_once(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    (place,) = store(segments, b"first")
    size = segment_path(tmp_path, 0).stat().st_size

    again = segments.append([item(0, b"first"), item(0, b"first")])
    other_token = segments.append([item(0, b"second", lease_id=2)])

    assert again == [place, place]
    assert segment_path(tmp_path, 0).stat().st_size > size
    assert other_token != [place]
    assert len(segments) == 2


def test_a_reopened_spool_still_knows_what_is_stored(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    places = store(segments, b"a", b"b")
    segments.close()

    again = Segments(tmp_path)

    assert again.append([item(1, b"b"), item(0, b"a")]) == [places[1], places[0]]


def test_a_full_segment_is_sealed_and_the_next_one_begun(tmp_path: Path) -> None:
    segments = Segments(tmp_path, segment_bytes=1000, cache_bytes=0)

    places = store(segments, *[bytes([i]) * 600 for i in range(4)])

    assert [place.segment for place in places] == [0, 0, 1, 1]
    assert [bytes(segments.read(place)) for place in places] == [bytes([i]) * 600 for i in range(4)]
    assert scan(segment_path(tmp_path, 0), sealed=True).torn_bytes == 0


def test_trim_gives_up_older_segments_only(tmp_path: Path) -> None:
    segments = Segments(tmp_path, segment_bytes=100)
    places = store(segments, *[bytes([i]) * 200 for i in range(4)])

    trimmed = segments.trim(2)
    remove(trimmed)

    assert (len(trimmed), len(segments), segments.trim(2)) == (2, 2, [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["segment_000002.seg", "segment_000003.seg"]
    assert segments.read(places[2]) == bytes([2]) * 200
    with pytest.raises(LedgerError, match=r"segment_000001\.seg at offset \d+: No such file"):
        segments.read(places[1])


def test_a_trimmed_payload_is_stored_again_if_it_is_appended_again(tmp_path: Path) -> None:
    segments = Segments(tmp_path, segment_bytes=100)
    store(segments, *[bytes([i]) * 200 for i in range(3)])
    remove(segments.trim(2))

    (again,) = store(segments, bytes(200))

    assert again.segment == 3
    assert segments.read(again) == bytes(200)


def test_trim_keeps_the_newest_so_that_its_number_is_never_used_again(tmp_path: Path) -> None:
    segments = Segments(tmp_path, segment_bytes=100)
    store(segments, b"x" * 200, b"y" * 200)
    remove(segments.trim(99))
    segments.close()

    again = Segments(tmp_path)
    (place,) = store(again, b"z", first=7)

    assert place.segment == 2


def test_recent_payloads_need_no_disk(tmp_path: Path) -> None:
    segments = Segments(tmp_path, cache_bytes=1000)
    old, new = store(segments, b"o" * 600, b"n" * 600)
    segment_path(tmp_path, 0).unlink()

    assert segments.recent(old) is None
    assert bytes(segments.recent(new) or b"") == b"n" * 600
    assert segments.read(new) == b"n" * 600


@pytest.mark.parametrize(
    "tear",
    [
        pytest.param(lambda raw, start: raw[: start + 9], id="cut within the head"),
        pytest.param(lambda raw, start: raw[:-1], id="cut within the last payload"),
        pytest.param(lambda raw, start: raw[:start] + bytes(len(raw) - start), id="size on disk, blocks not"),
        pytest.param(lambda raw, start: raw[:start] + bytes(20) + raw[start + 20 :], id="later block first"),
    ],
)
def test_a_torn_tail_is_cut_and_reported(tmp_path: Path, tear: Callable[[bytes, int], bytes]) -> None:
    segments = Segments(tmp_path)
    store(segments, b"kept" * 10)
    path = segment_path(tmp_path, 0)
    start = path.stat().st_size
    segments.append([item(1, b"lost" * 10), item(2, b"lost" * 20)])  # never synced
    segments.close()
    path.write_bytes(tear(path.read_bytes(), start))

    again = Segments(tmp_path)

    assert again.torn is not None
    assert again.torn.path == path
    assert again.torn.offset == path.stat().st_size
    assert again.torn.num_bytes > 0
    assert start <= again.torn.offset
    assert again.append([item(0, b"kept" * 10)])[0].segment == 0
    assert scan(path, sealed=True).torn_bytes == 0


def test_a_cut_spool_writes_on_in_a_new_segment(tmp_path: Path) -> None:
    segments = Segments(tmp_path, cache_bytes=0)
    store(segments, b"kept", b"lost")
    segments.close()
    path = segment_path(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-1])

    again = Segments(tmp_path, cache_bytes=0)
    (place,) = again.append([item(1, b"lost")])

    assert place.segment == 1
    assert bytes(again.read(place)) == b"lost"


@pytest.mark.parametrize("where", ["head", "payload"])
def test_damage_to_what_was_on_disk_names_the_file_and_the_offset(tmp_path: Path, where: str) -> None:
    """A later record shows that these bytes were durable, so they are no torn tail."""
    segments = Segments(tmp_path, cache_bytes=0)
    (first,) = store(segments, b"first" * 10)
    second_starts = segment_path(tmp_path, 0).stat().st_size
    (second,) = store(segments, b"second" * 10, first=1)
    store(segments, b"third" * 10, first=2)
    segments.close()
    path = segment_path(tmp_path, 0)
    flip(path, second_starts + 5 if where == "head" else second.offset + 3)

    with pytest.raises(LedgerError, match=rf"segment_000000\.seg is damaged at offset {second_starts}"):
        Segments(tmp_path)

    assert first.offset < second_starts


def test_a_sealed_segment_has_no_torn_tail(tmp_path: Path) -> None:
    segments = Segments(tmp_path, segment_bytes=100)
    places = store(segments, b"x" * 200, b"y" * 200)
    segments.close()
    flip(segment_path(tmp_path, 0), places[0].offset)

    with pytest.raises(LedgerError, match=r"segment_000000\.seg is damaged at offset 16"):
        Segments(tmp_path)


def test_a_read_checks_length_and_checksum(tmp_path: Path) -> None:
    segments = Segments(tmp_path, cache_bytes=0)
    (place,) = store(segments, b"payload")
    flip(segment_path(tmp_path, 0), place.offset + 2)

    for wrong in (place, place._replace(length=6), place._replace(length=1 << 40), place._replace(offset=-1)):
        with pytest.raises(LedgerError, match=rf"segment_000000\.seg at offset {wrong.offset}"):
            segments.read(wrong)


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    segments = Segments(tmp_path)

    with pytest.raises(LedgerError, match="in use"):
        Segments(tmp_path)

    segments.close()
    Segments(tmp_path).close()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        pytest.param(b"something else entirely", "is not a spool segment", id="another file"),
        pytest.param(b"arl.seg\n\x09\0\0\0\0\0\0\0", "segment format 9", id="another format"),
        pytest.param(b"", "is not a spool segment", id="empty"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, raw: bytes, message: str) -> None:
    segment_path(tmp_path, 0).write_bytes(raw)

    with pytest.raises(LedgerError, match=message):
        Segments(tmp_path)


def test_a_full_disk_ends_the_run_and_loses_nothing_durable(tmp_path: Path) -> None:
    segments = Segments(tmp_path, cache_bytes=0)
    (place,) = store(segments, b"durable" * 100)

    with disk_full_at(2000), pytest.raises(RunFailed, match="cannot write"):
        segments.append([item(1, b"x" * 5000)])
    with pytest.raises(RunFailed, match="cannot write"):
        segments.append([item(2, b"small")])
    segments.close()

    again = Segments(tmp_path, cache_bytes=0)
    assert again.torn is not None
    assert again.read(place) == b"durable" * 100
    assert len(again) == 1


def test_a_closed_spool_takes_nothing(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    segments.close()
    segments.close()

    with pytest.raises(RunFailed, match="was closed"):
        segments.append([item(0, b"x")])


def test_a_reference_without_a_matching_payload_is_missing(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    (place,) = store(segments, b"alpha")
    ref = SpoolRef("s0", *place)
    other = SpoolRef("s0", place.segment, place.offset, place.length, place.crc32 ^ 1)

    assert segments.missing([ref, other, ref]) == [other]


def test_a_segment_is_sealed_by_the_number_of_its_payloads_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their index is in memory until it is trimmed, however small they are."""
    monkeypatch.setattr("asyncrl.spool.segments.SEGMENT_PAYLOADS", 3)
    segments = Segments(tmp_path)
    for number in range(7):
        segments.append([(entry(number), memoryview(b"tiny"))])
    assert segments.num_segments == 3
    segments.trim(2)
    assert len(segments) == 1
    segments.close()


def test_the_index_has_a_bound_that_no_number_of_payloads_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Payloads that may still be trained are the newest ten: what is trimmed lies below the segment of the oldest."""
    monkeypatch.setattr("asyncrl.spool.segments.SEGMENT_PAYLOADS", 7)
    segments, places = Segments(tmp_path), []
    for number in range(100):
        places += segments.append([(entry(number), memoryview(b"tiny"))])
        segments.sync()
        assert len(segments) <= most_indexed(num_open=10)
        segments.trim(places[-10:][0].segment)
    segments.close()


# ── test shares ───────────────────────────────────────────────────────────────────────────────


def test_one_node_alone_may_use_the_whole_disk() -> None:
    shares = Shares()
    shares.stored("a", 0, 1000)
    assert shares.allows("a", 1000, free_bytes=lambda: 10)


def test_of_several_nodes_none_holds_more_than_half() -> None:
    shares = Shares()
    shares.stored("a", 0, 400)
    shares.stored("b", 0, 100)
    assert shares.allows("a", 100, free_bytes=lambda: 500)
    assert not shares.allows("a", 101, free_bytes=lambda: 500)
    assert shares.allows("b", 400, free_bytes=lambda: 500)


def test_what_is_trimmed_is_free_again() -> None:
    shares = Shares()
    shares.stored("a", 0, 500)
    shares.stored("a", 1, 10)
    shares.stored("b", 1, 10)
    assert not shares.allows("a", 1, free_bytes=lambda: 400)
    shares.trimmed(1)
    assert shares.allows("a", 200, free_bytes=lambda: 400)
