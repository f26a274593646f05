"""Encoding of records, their keys, and their use in an audit."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Dropped,
    Duplicate,
    FailedAttempt,
    LeftOut,
    Measured,
    NodeEvent,
    Refused,
    Reissued,
    Restarted,
    Result,
    Rewarded,
    SamplingPaused,
    SettingsSet,
    Started,
    Taken,
    Untrained,
    VersionLive,
    Written,
    decode,
    encode,
    ended_groups,
    unique_key,
)
from asyncrl.errors import LedgerError
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import TrajectorySummary, Unit


def result(group_id: int, index: int, num_tokens: int = 10, oldest_version: int = 0) -> Result:
    summary = TrajectorySummary(num_tokens, 5, oldest_version, oldest_version, 1, "stop")
    return Result(Unit(group_id, index), 1, SpoolRef("s0", 0, 16, 100, 0), summary)


LIFE: list[AnyRecord] = [
    VersionLive(policy_version=0, next_step=0),
    Admitted(group_id=0, epoch=0, row=4, policy_version=0),
    Admitted(group_id=1, epoch=0, row=2, policy_version=0),
    Admitted(group_id=2, epoch=0, row=7, policy_version=0),
    Reissued(unit=Unit(0, 1), lease_id=1, cause="node_lost", num_tokens=3),
    result(0, 0, num_tokens=10),
    result(0, 1, num_tokens=30),
    Duplicate(unit=Unit(0, 1), lease_id=1, num_tokens=28),
    Rewarded(unit=Unit(0, 0), reward=1.0),
    Rewarded(unit=Unit(0, 1), reward=0.0),
    result(1, 0, num_tokens=900),
    Dropped(group_id=1, reason="failed", num_tokens=900),
    Taken(step=0, group_ids=[0]),
    VersionLive(policy_version=1, next_step=1),
    Committed(step=0, checkpoint="step_000000"),
]


IDS = st.integers(0, 2**63 - 1)
STAGES = st.sampled_from(["rollout", "reward", "payload", "trainer"])
NUMBERS = st.floats(allow_nan=False)
NAMES = st.text(max_size=8)
METRICS = st.dictionaries(NAMES, NUMBERS, max_size=2)
UNITS = st.builds(Unit, IDS, IDS, st.sampled_from(["train", "held_out"]))
REFS = st.builds(SpoolRef, NAMES, IDS, IDS, IDS, st.integers(0, 2**32 - 1))
SUMMARIES = st.builds(TrajectorySummary, IDS, IDS, IDS, IDS, IDS, st.sampled_from(["stop", "length"]))
RECORDS = st.one_of(
    st.builds(Admitted, IDS, IDS, IDS, IDS),
    st.builds(Result, UNITS, IDS, REFS, SUMMARIES),
    st.builds(Duplicate, UNITS, IDS, IDS),
    st.builds(Rewarded, UNITS, NUMBERS, METRICS),
    st.builds(FailedAttempt, UNITS, STAGES, NAMES, IDS, st.booleans()),
    st.builds(Reissued, UNITS, IDS, NAMES, IDS),
    st.builds(Refused, UNITS, IDS, NAMES, IDS),
    st.builds(LeftOut, UNITS, NAMES, IDS),
    st.builds(Untrained, IDS, IDS, NAMES, IDS),
    st.builds(Dropped, IDS, NAMES, IDS),
    st.builds(Taken, IDS, st.lists(IDS, max_size=3)),
    st.builds(Committed, IDS, NAMES),
    st.builds(VersionLive, IDS, IDS),
    st.builds(Measured, IDS, NUMBERS, IDS, METRICS),
    st.builds(SettingsSet, st.dictionaries(NAMES, st.booleans() | st.integers(0, 9), max_size=2), NAMES, NUMBERS),
    st.builds(Started, IDS, NAMES),
    st.builds(Written, NAMES, NAMES, IDS),
    st.builds(SamplingPaused, st.booleans(), NAMES, NUMBERS),
    st.builds(NodeEvent, NAMES, NAMES, st.just("rollout"), st.sampled_from(["joined", "lost"]), NAMES, NUMBERS),
)


@given(RECORDS)
def test_a_record_comes_back_as_it_was(record: AnyRecord) -> None:
    assert decode(encode(record)) == record


def test_a_field_appended_by_a_newer_version_is_left_out() -> None:
    newer = msgspec.msgpack.encode(["Committed", 7, "step_000007", "sha256:..."])

    assert decode(newer) == Committed(step=7, checkpoint="step_000007")


def test_bytes_that_are_no_record_are_refused_in_one_sentence() -> None:
    for raw in (b"", b"\xc1", msgspec.msgpack.encode(["Exploded", 1]), msgspec.msgpack.encode(["Committed", "7", ""])):
        with pytest.raises(LedgerError, match="not a record"):
            decode(raw)


def test_an_event_that_happens_once_has_a_key_and_one_that_may_repeat_has_none() -> None:
    assert [unique_key(record) for record in LIFE] == [
        None,
        "admitted/0",
        "admitted/1",
        "admitted/2",
        None,
        "result/train/0/0",
        "result/train/0/1",
        None,
        "rewarded/train/0/0",
        "rewarded/train/0/1",
        "result/train/1/0",
        None,
        "taken/0",
        None,
        None,
    ]


def test_records_after_a_restart_of_their_group_have_other_keys() -> None:
    again = [replace(record, num_restarts=2) for record in LIFE if isinstance(record, Result | Rewarded)]

    assert [unique_key(record) for record in again] == [
        "result/train/0~2/0", "result/train/0~2/1", "rewarded/train/0~2/0", "rewarded/train/0~2/1", "result/train/1~2/0"
    ]  # fmt: skip
    assert ended_groups(Restarted(0, 3, [8])) == []


def test_a_group_ends_when_it_is_taken_or_dropped() -> None:
    assert [group_id for record in LIFE for group_id in ended_groups(record)] == [1, 0]


def test_an_audit_needs_nothing_but_the_records() -> None:
    """Worked by hand: three issued, one trained, one dropped, one open; 3 + 28 + 900 tokens thrown away."""
    issued = [r.group_id for r in LIFE if isinstance(r, Admitted)]
    committed = max(r.step for r in LIFE if isinstance(r, Committed))
    trained = [g for r in LIFE if isinstance(r, Taken) and r.step <= committed for g in r.group_ids]
    dropped = [r for r in LIFE if isinstance(r, Dropped)]
    lengths = {r.unit.group_id: r.summary.num_tokens for r in LIFE if isinstance(r, Result)}
    versions = [r for r in LIFE if isinstance(r, VersionLive)]

    assert len(issued) == len(trained) + len(dropped) + len({2})
    assert set(range(max(issued) + 1)) == set(issued)
    assert [lengths[r.group_id] for r in dropped] == [900]
    assert sum(r.num_tokens for r in LIFE if isinstance(r, Dropped | Duplicate | Reissued)) == 931
    assert max(v.policy_version for v in versions if v.next_step <= 0) - 0 == 0


def test_a_unit_has_one_result_and_one_reward_more_for_each_refusal() -> None:
    first = result(3, 1)
    keys = [unique_key(replace(first, num_restarts=r, num_refused=n)) for r in (0, 1) for n in (0, 1)]
    assert keys == ["result/train/3/1", "result/train/3/1~1", "result/train/3~1/1", "result/train/3~1/1~1"]
    assert unique_key(Rewarded(Unit(3, 1), 1.0, num_refused=2)) == "rewarded/train/3/1~2"
    assert unique_key(Untrained(4, 3, "NaN", 9)) == "untrained/3"
    assert unique_key(Refused(Unit(3, 1), 7, "NaN", 9)) is None
