"""Payloads against the records that name them."""

from array import array

from msgspec.structs import replace

from asyncrl.broker.audit.spool_rules import SpoolRules, StoredPayload
from asyncrl.broker.ledger.record_book import RecordBook
from asyncrl.broker.ledger.records import Admitted, Result
from asyncrl.config.sections.schedule import Schedule
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import Span, Trajectory, TrajectorySummary, Unit

SUMMARY = TrajectorySummary(2, 1, 0, 0, 1, "stop")
TRAJECTORY = Trajectory(
    unit=Unit(0, 0),
    prompt_ids=memoryview(b"\0" * 4),
    completion_ids=memoryview(array("i", [4, 5]).tobytes()),
    behavior_logprobs=memoryview(array("f", [-1.0, -1.0]).tobytes()),
    spans=[Span(0, 0, 2)],
    finish_reason="stop",
    text="",
)
PAYLOAD = StoredPayload(
    file="segment_000003.seg",
    unit=Unit(0, 0),
    lease_id=1,
    summary=SUMMARY,
    segment=3,
    offset=16,
    length=90,
    crc32=7,
    trajectory=TRAJECTORY,
)


def rules(*segments: int, spool: str = "spool") -> SpoolRules:
    book = RecordBook(Schedule(groups_per_step=1, group_size=1))
    book.add(Admitted(0, 0, 0, 0))
    book.add(Result(Unit(0, 0), 1, SpoolRef("spool", 3, 16, 90, 7), SUMMARY))
    return SpoolRules(book, spool, segments)


def test_a_payload_that_fits_its_record() -> None:
    found = rules(3)
    assert [*found.add(PAYLOAD), *found.missing()] == []
    assert (found.num_checked, found.num_trimmed, found.elsewhere) == (1, 0, {})


def test_a_payload_that_no_record_names_is_normal() -> None:
    found = rules(3)
    assert list(found.add(replace(PAYLOAD, offset=500))) == []
    assert found.num_checked == 0


def test_each_difference_is_named() -> None:
    other = replace(PAYLOAD, unit=Unit(5, 0), lease_id=9, crc32=8)
    where = "spool/segment_000003.seg at offset 16: the payload is not the one of unit 0/0 in the ledger"
    assert list(rules(3).add(other)) == [
        f"{where}: expected unit unit 0/0, got unit 5/0",
        f"{where}: expected lease 1, got 9",
        f"{where}: expected checksum 7, got 8",
    ]


def test_bytes_that_are_no_trajectory_and_a_trajectory_of_another_unit() -> None:
    (problem,) = rules(3).add(replace(PAYLOAD, trajectory=None))
    assert problem.endswith("the payload of unit 0/0 is not a trajectory")
    (problem,) = rules(3).add(replace(PAYLOAD, trajectory=replace(TRAJECTORY, unit=Unit(4, 0))))
    assert problem.endswith("the payload is that of unit 4/0: expected unit 0/0")


def test_a_payload_is_missing_from_its_segment_or_with_a_segment_that_is_needed() -> None:
    expected = "expected 90 bytes with checksum 0x00000007 at offset 16 of segment 3"
    missing = f"spool: the payload of unit 0/0 is missing: {expected}"
    assert list(rules(3).missing()) == [missing]
    assert list(rules(4).missing()) == [missing]
    assert list(rules(3).missing(trimmed_meanwhile={3})) == []


def test_payloads_of_other_spools_are_counted() -> None:
    found = rules(3, spool="other")
    assert list(found.missing()) == []
    assert found.elsewhere == {"spool": 1}
