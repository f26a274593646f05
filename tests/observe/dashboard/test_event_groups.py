from typing import Any

from asyncrl.observe.dashboard.event_groups import EventQuery, groups, members

EVENTS: list[dict[str, Any]] = [
    {"event": "run.started", "at": "t0", "name": "a", "time_s": 0.0},
    *(
        {"event": "node.lost", "node": f"rollout-{i % 3}", "cause": f"no beat for {10 + i}.5 s", "time_s": 1.0 + i}
        for i in range(6)
    ),
    {"event": "node.lost", "node": "rollout-9", "cause": "was killed by SIGKILL", "time_s": 9.0},
    {"event": "units.failed", "cause": "reward: KeyError: 'answer'", "count": 12, "time_s": 3.0},
    {"event": "units.failed", "cause": "reward: KeyError: 'score'", "count": 41, "time_s": 5.0},
    {"event": "eval.finished", "accuracy": 0.123456789, "policy_version": 10, "time_s": 50.0},
]  # fmt: skip


def test_events_of_one_kind_and_cause_are_one_group() -> None:
    found = groups(EVENTS, EventQuery())
    by_kind = [(group.kind, group.cause, group.num) for group in found]
    assert by_kind == [
        ("node.lost", "was killed by SIGKILL", 1),
        ("node.lost", "no beat for 15.5 s", 6),
        ("units.failed", "reward: KeyError: 'score'", 2),
        ("eval.finished", "", 1),
        ("run.started", "", 1),
    ]
    beat = found[1]
    assert (beat.nodes, beat.first_s, beat.last_s) == (["rollout-0", "rollout-1", "rollout-2"], 1.0, 6.0)
    assert (found[2].counted, found[3].last) == (41, "accuracy 0.1235, policy_version 10")
    assert [group.is_trouble for group in found] == [True, True, True, False, False]


def test_a_group_opens_to_its_last_events() -> None:
    lost = groups(EVENTS, EventQuery())[1]
    assert members(EVENTS, EventQuery(), lost.id) == EVENTS[1:7]
    assert members(EVENTS * 100, EventQuery(node="rollout-1"), lost.id)[-1] == EVENTS[5]
    assert len(members(EVENTS * 100, EventQuery(), lost.id)) == 200
    assert members(EVENTS, EventQuery(), "0") == []


def test_filters_are_by_kind_node_and_text() -> None:
    assert [group.num for group in groups(EVENTS, EventQuery(kind="node.lost"))] == [1, 6]
    assert [group.num for group in groups(EVENTS, EventQuery(node="rollout-1"))] == [2]
    assert [group.kind for group in groups(EVENTS, EventQuery(text="KEYERROR"))] == ["units.failed"]
    assert groups(EVENTS, EventQuery(kind="node.lost", text="keyerror")) == []


def test_hostile_events_do_not_break_the_list() -> None:
    hostile: list[dict[str, Any]] = [
        {}, {"event": None, "cause": ["x"], "node": {"a": 1}, "time_s": "soon", "count": True},
        {"event": "x" * 10_000, "cause": "<script>alert(1)</script>" * 1000},
    ]  # fmt: skip
    found = groups(hostile, EventQuery(text="<SCRIPT>"))
    assert [len(group.cause) for group in found] == [400]
    assert len(groups(hostile, EventQuery())) == 3
