"""Aligned lines: what a person sees of a run directory."""

import pytest
from msgspec import structs

from asyncrl.broker.ledger.audit import Audit, LengthBucket
from asyncrl.broker.ledger.dead_letters import DeadLetter
from asyncrl.cli.tables import aligned, audit_table, dead_letter_table, event_table

AUDIT = Audit(
    steps=2,
    issued=1_234,
    trained=4,
    committed=2,
    dropped={"rollout: too\nlong": 2, "reward: hung": 1},
    open=0,
    skipped=0,
    double_trained=0,
    peak_open=4,
    window=8,
    reissued={"node_lost": 3, "failed": 2},
    duplicates=1,
    failed_attempts={},
    dead_letters=0,
    tokens_trained=5_000,
    tokens_thrown_away={"dropped": 200, "duplicates": 0, "reissued": 7},
    staleness_max=1,
    staleness={0: 6, 1: 2},
    lengths=[LengthBucket(max_tokens=16, trained=3, dropped=1), LengthBucket(max_tokens=32, trained=5, dropped=0)],
    dropped_unfinished=2,
    problems=[],
)


def test_cells_stand_under_each_other():
    assert aligned([["a", "1", "x"], ["bcd", "23", ""]], right=[1]) == ["a     1  x", "bcd  23"]
    assert aligned([]) == []


def test_an_audit_is_a_table():
    assert audit_table(AUDIT).splitlines() == [
        "groups",
        "  issued             1,234",
        "  trained                4  in 2 steps; 2 in a checkpoint",
        "  dropped                3",
        "                         2    rollout: too long",
        "                         1    reward: hung",
        "  open                   0",
        "  skipped                0",
        "  double-trained         0",
        "  open at once           4  at most; the window holds 8",
        "trajectories",
        "  re-issued              5  node_lost 3, failed 2",
        "  duplicates             1",
        "  failed attempts        0",
        "  dead letters           0",
        "tokens",
        "  trained            5,000",
        "  thrown away          207  dropped 200, reissued 7",
        "staleness          trained",
        "  0                      6  75.0%",
        "  1                      2  25.0%",
        "length             trained  dropped",
        "  0-16                   3  1 (25.0%)",
        "  17-32                  5  0",
        "  unknown                   2 never finished",
        "everything adds up: issued = trained + dropped + open, nothing skipped, nothing trained twice",
    ]


def test_what_began_anew_or_was_too_old_is_shown_where_there_is_some():
    lengths = [LengthBucket(max_tokens=16, trained=3, dropped=1, restarted=2)]
    lines = audit_table(structs.replace(AUDIT, restarted=7, over_max_staleness=2, lengths=lengths)).splitlines()
    assert [" ".join(line.split()) for line in lines if "begun anew" in line or "max_staleness" in line] == [
        "begun anew 7 too old to be trained on",
        "over max_staleness 2 25.0%",
        "0-16 3 1 (25.0%); 2 begun anew",
    ]


def test_rare_reasons_of_drops_are_counted_together():
    dropped = {f"reason {number}": 20 - number for number in range(11)}
    audit = Audit(**{**{field: getattr(AUDIT, field) for field in AUDIT.__struct_fields__}, "dropped": dropped})
    lines = audit_table(audit).splitlines()
    assert lines[3].split() == ["dropped", str(sum(dropped.values()))]
    assert lines[12].split(maxsplit=1) == ["33", "of 3 other reasons"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param("rollout-0", "rollout-0", id="a word"),
        pytest.param("killed by SIGKILL", '"killed by SIGKILL"', id="words"),
        pytest.param("a\nb", '"a\\nb"', id="lines stay one"),
        pytest.param("a=b", '"a=b"', id="looks like a field"),
        pytest.param("", '""', id="empty"),
        pytest.param(0.25, "0.25", id="a number"),
        pytest.param(None, "null", id="nothing"),
        pytest.param(True, "true", id="a claim"),
        pytest.param([1, 2], "[1,2]", id="a list"),
    ],
)
def test_a_field_of_an_event_is_one_word_or_json(value, shown):
    assert event_table([{"event": "e", "at": "t", "field": value}]) == f"t  e  field={shown}"


def test_a_reason_with_lines_is_one_line():
    letter = DeadLetter(
        split="held_out", group_id=3, index=0, epoch=None, row=None, stage="reward", attempts=1, reason="hung\nfor 10 s"
    )
    assert dead_letter_table([letter]).splitlines() == [
        "unit  split     epoch  row  stage   attempts  reason",
        "3/0   held_out      -    -  reward         1  hung for 10 s",
    ]
