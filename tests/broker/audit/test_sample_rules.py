"""Rows of a samples file against the batch in the ledger."""

from array import array
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from asyncrl.broker.audit.run_rules import Line
from asyncrl.broker.audit.sample_rules import (
    SpoolRules,
    StoredFacts,
    StoredPayload,
    chain_problems,
    file_problems,
    heads_of_events,
    line_problems,
    meta_problems,
    sample_problems,
    span_problems,
    summary_file_problems,
    unread,
    unwitnessed_steps,
)
from asyncrl.broker.ledger.reader import ChainCheck, Head, LedgerMeta
from asyncrl.broker.ledger.records import Admitted, AnyRecord, Dropped, Result, Rewarded, Started, Taken, Written
from asyncrl.broker.ledger.state import LedgerState
from asyncrl.config.sections.schedule import Schedule
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import Span, Trajectory, TrajectorySummary, Unit
from asyncrl.records.run_directory import RunSummary
from asyncrl.records.samples import SampleFacts

ROWS = [
    SampleFacts(step=0, group_id=0, index=index, reward=0.5, staleness=0, num_tokens=2, spans=[Span(0, 0, 2)])
    for index in range(2)
]


def problems(*rows: SampleFacts, stored: Mapping[Unit, StoredFacts] = {}) -> list[str]:
    book = LedgerState(Schedule(groups_per_step=1, group_size=2))
    book.add(Admitted(0, 0, 0, 0))
    for index in range(2):
        summary = TrajectorySummary(2, 1, 0, 0, 1, "stop")
        book.add(Result(Unit(0, index), 1, SpoolRef("s", 0, 0, 1, 0), summary))
        book.add(Rewarded(Unit(0, index), 0.5))
    book.add(Taken(0, [0]))
    return list(sample_problems(book, 0, rows, stored))


def test_rows_that_fit() -> None:
    assert problems(*ROWS) == []


def test_a_row_too_few_one_too_many_and_one_twice() -> None:
    assert problems(ROWS[0]) == ["unit 0/1 is missing, which step 1 was trained on"]
    assert problems(*ROWS, ROWS[1]) == ["unit 0/1 is there 2 times"]
    assert problems(*ROWS, replace(ROWS[0], group_id=7)) == ["unit 7/0 is not in the batch of step 1 in the ledger"]


def test_rows_that_differ_from_their_payload() -> None:
    stored = {Unit(0, 1): StoredFacts("ab", "four", "ann", "stop")}
    row = replace(ROWS[1], arrays="ab", completion="four", node="ann", finish_reason="stop")

    assert problems(ROWS[0], row, stored=stored) == []
    assert problems(ROWS[0], replace(row, arrays="cd"), stored=stored) == [
        "unit 0/1 has other token ids or log-probs than its payload in the spool, which the trainer read"
    ]
    assert problems(ROWS[0], replace(row, completion="x" * 50), stored=stored) == [
        f"unit 0/1 has the completion '{'x' * 40}...': expected 'four', as in its payload in the spool"
    ]


def test_numbers_that_differ_from_the_ledger() -> None:
    assert problems(ROWS[0], replace(ROWS[1], reward=1.0)) == [
        "unit 0/1 has the reward 1.0: expected 0.5, as in the ledger"
    ]
    assert problems(ROWS[0], replace(ROWS[1], staleness=-999_997)) == ["unit 0/1 has the staleness -999997: expected 0"]
    assert problems(ROWS[0], replace(ROWS[1], step=4)) == ["unit 0/1 says that it belongs to step 5"]
    assert problems(ROWS[0], replace(ROWS[1], num_turns=3, context_tokens=5)) == [
        "unit 0/1 has 3 turns and 5 tokens of context: expected 1 and 0, as in the ledger"
    ]


# ── test spool rules ──────────────────────────────────────────────────────────────────────────
# Payloads against the records that name them.

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


def payloads_in(*spools: str) -> LedgerState:
    """A ledger with an open group for each payload."""
    state = LedgerState(Schedule(groups_per_step=1, group_size=1))
    for group_id, spool in enumerate(spools):
        state.add(Admitted(group_id, group_id, 0, 0))
        state.add(Result(Unit(group_id, 0), 1, SpoolRef(spool, 3, 16, 90, 7), SUMMARY))
    return state


def rules(*segments: int, spool: str = "spool") -> SpoolRules:
    return SpoolRules(payloads_in(spool), spool, segments)


def test_a_payload_that_fits_its_record() -> None:
    found = rules(3)
    assert [*found.add(PAYLOAD), *found.missing()] == []
    assert (found.num_checked, found.num_trimmed) == (1, 0)


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


def test_problems_name_their_spool() -> None:
    (problem,) = rules(3, spool="far").add(replace(PAYLOAD, trajectory=None))
    assert problem.startswith("far/segment_000003.seg at offset 16: ")
    (missing,) = rules(3, spool="far").missing()
    assert missing.startswith("far: the payload of unit 0/0 is missing")


def test_of_a_spool_whose_folder_is_not_read_what_must_be_on_its_disk_is_counted_apart() -> None:
    state = payloads_in("spool", "far", "far")
    state.add(Dropped(1, "zero_std", 0))
    assert list(SpoolRules(state, "spool", {3}).missing()) == list(rules(3).missing())
    (sentence,) = unread(state, ["spool"])
    assert sentence.startswith("the folder of the spool far, which stored 2 payloads; 1 of them must be there, the")


# ── test token rules ──────────────────────────────────────────────────────────────────────────
# Spans of a trajectory against its summary and the bound of its schedule.

RESULT = Result(Unit(3, 1), 1, SpoolRef("s", 0, 0, 1, 0), TrajectorySummary(5, 4, 6, 7, 2, "stop"))
SPANS = [Span(6, 0, 2), Span(7, 2, 5)]


def token_rules_problems(
    spans: list[Span], num_tokens: int = 5, trained: int | None = 7, bound: int | None = 1
) -> list[str]:
    return list(span_problems(RESULT, spans, num_tokens, trained, bound))


def test_spans_that_fit_their_record() -> None:
    assert token_rules_problems(SPANS) == []


def test_another_number_of_tokens() -> None:
    longer = [Span(6, 0, 2), Span(7, 2, 6)]
    assert token_rules_problems(longer, num_tokens=6) == ["unit 3/1 has 6 tokens: expected 5, as in the ledger"]


@pytest.mark.parametrize(
    "spans",
    [
        [Span(6, 0, 2), Span(7, 3, 5)],
        [Span(6, 0, 3), Span(7, 2, 5)],
        [Span(6, 0, 2), Span(7, 2, 4)],
        [Span(6, 0, 2), Span(6, 2, 2), Span(7, 2, 5)],
        [],
    ],
    ids=["gap", "overlap", "short", "empty span", "none"],
)
def test_spans_that_do_not_cover_the_tokens(spans: list[Span]) -> None:
    assert token_rules_problems(spans) == ["unit 3/1 has spans that do not cover its 5 tokens once, in order"]


def test_an_older_token_than_the_summary_says_is_stale_if_it_was_trained_on() -> None:
    spans = [Span(6, 0, 2), Span(2, 2, 3), Span(7, 3, 5)]
    hidden = "unit 3/1 has tokens of the versions 2 to 7: expected 6 to 7, as in the ledger"
    assert token_rules_problems(spans) == [
        hidden,
        "unit 3/1 is stale beyond its bound: version 7 was trained on tokens of version 2, expected at most 1 versions "
        "between them, got 5",
    ]
    assert token_rules_problems(spans, trained=None) == [hidden]
    assert token_rules_problems(spans, bound=None) == [hidden]


# ── test witness rules ────────────────────────────────────────────────────────────────────────
# Digests in the ledger, and of it, against what they are of.

SUMMARY_WITNESS_RULES = RunSummary(
    name="run", status="finished", seed=0, steps=1, steps_planned=1, versions=1, wall_s=1.0, trained_tokens=8,
    staleness_mean=0.0, staleness_max=0, ledger_records=7,
)  # fmt: skip
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""SHA-256 of nothing."""


def book(*records: AnyRecord) -> LedgerState:
    made = LedgerState(Schedule())
    for record in records:
        made.add(record)
    return made


def test_a_digest_that_another_file_keeps_is_that_of_the_first_records() -> None:
    check = ChainCheck("run", wanted=[1, 2])
    for body in (b"a", b"b"):
        check.add(body, None)
    digests, heads = check.digests, {"a": Head(1, check.digests[1]), "b": Head(2, check.digests[2])}
    check.num_headless = 2

    assert list(chain_problems(check, heads)) == []
    assert list(chain_problems(check, {"an earlier asyncrl": Head(1, ""), "more than there are": Head(9, "ab")})) == []
    (problem,) = chain_problems(check, {"summary.json": Head(1, digests[2])})
    assert problem.startswith("ledger.sqlite: its first 1 records are not those of when summary.json was written")


def test_events_of_checkpoints_keep_digests() -> None:
    events: list[Line] = [
        {"event": "checkpoint.written", "step": 3, "ledger_records": 7, "ledger_head": "ab"},
        {"event": "checkpoint.written", "step": 1},
        {"event": "node.joined"},
    ]
    assert heads_of_events(events) == {"events.jsonl (checkpoint.written of step 4)": Head(7, "ab")}


def test_the_last_start_has_the_digest_of_the_facts_beside_the_records() -> None:
    meta = LedgerMeta("run", 2, "", "", digest="other")

    assert list(meta_problems(book(), meta, is_over=True)) == []
    assert list(meta_problems(book(Started(2, "other")), meta, is_over=True)) == []
    (problem,) = meta_problems(book(Started(2, "one")), meta, is_over=False)
    assert problem.startswith("ledger.sqlite: its meta is not that of start 2")
    starting = meta_problems(book(Started(1, "one")), meta, is_over=False)
    assert list(starting) == [], "a broker has opened it, and not recorded its start yet"


def test_a_line_is_the_one_that_was_written_whatever_was_not_finite_in_it() -> None:
    line = {"step": 3, "loss": None, "reward": 0.5}
    digest = "66e88ec07c7e5a63df66cb3a2f6b8f2b1ba2f9b0ca8a0dd1fbb3bb4f6e36a8a1"

    assert list(line_problems(book(), [line])) == []
    assert unwitnessed_steps(book(Written("metrics.jsonl", digest, 4)), [line]) == [3]
    (problem,) = line_problems(book(Written("metrics.jsonl", digest, 3)), [line])
    assert problem.startswith(
        "metrics.jsonl: the line of step 4 is not what was written: expected the digest 66e88ec07"
    )


def test_the_summary_counts_until_the_next_start() -> None:
    written = Written("summary.json", "ab")

    assert list(summary_file_problems(book(Written("summary.json", EMPTY)), SUMMARY_WITNESS_RULES, b"")) == []
    assert len(list(summary_file_problems(book(written), SUMMARY_WITNESS_RULES, b""))) == 1
    assert list(summary_file_problems(book(written, Started(2, "")), SUMMARY_WITNESS_RULES, b"")) == []


def test_a_file_may_have_been_replaced_while_the_ledger_was_read() -> None:
    recorded = book(Written("a", "old"), Written("a", "new"))

    assert list(file_problems(recorded, "b", ["x"])) == [], "the ledger has no digest of it"
    assert list(file_problems(recorded, "a", ["old", "new"])) == []
    assert list(file_problems(recorded, "a", ["old", "old"])) == [
        "a: it is not what was written: expected the digest new, as in the ledger, got old"
    ]
