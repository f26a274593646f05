from typing import Any

import msgspec
import pytest

from asyncrl.records.times import NodeTimes, TimesLine
from asyncrl.tools.dashboard.query import Query
from asyncrl.tools.dashboard.time_bands import TimeBands
from asyncrl.tools.dashboard.timeline import MAX_MARKS, TimelineQuery, timeline

LIVE = {"event": "version.live", "policy_version": 3}


@pytest.fixture
def bands() -> TimeBands:
    """Ten spans of 2 s: rollouts sample half of the time, the trainer trains in even spans."""
    bands = TimeBands()
    for step in range(10):
        nodes = {f"rollout-{i}": NodeTimes("rollout", {"sampling": 1.0, "asleep": 1.0}) for i in range(12)}
        nodes["trainer-0"] = NodeTimes("trainer", {"training": 2.0} if step % 2 == 0 else {"away": 2.0})
        bands.add(TimesLine(step, 2.0 * (step + 1), 2.0, nodes))
    return bands


def asked(bands: TimeBands, query: str = "", events: Any = ()) -> dict[str, Any]:
    found = timeline(bands, events, TimelineQuery.read(Query(query.encode())))
    msgspec.json.encode(found)
    return found


def test_every_span_is_a_column_if_they_fit(bands: TimeBands) -> None:
    found = asked(bands)
    assert (found["extent"], found["starts"][1], found["ends"][-1], len(found["starts"])) == ((0.0, 20.0), 2, 20, 10)
    assert [node["node"] for node in found["nodes"]][:3] == ["trainer-0", "rollout-0", "rollout-1"]
    assert found["nodes"][0]["shares"] == {"training": [1, 0] * 5, "away": [0, 1] * 5}


def test_neighbouring_spans_share_a_column_if_they_do_not_fit(bands: TimeBands) -> None:
    found = asked(bands, "columns=3")
    assert (found["starts"], found["ends"]) == ([0, 8, 16], [8, 16, 20])
    assert found["nodes"][0]["shares"]["training"] == [0.5, 0.5, 0.5]
    assert found["nodes"][1]["shares"]["sampling"] == [0.5, 0.5, 0.5]


def test_a_part_of_the_time_and_of_the_nodes_can_be_asked_for(bands: TimeBands) -> None:
    found = asked(bands, "start=4.5&end=7&role=rollout&offset=10&limit=5")
    assert (found["starts"], found["ends"]) == ([4, 6], [6, 8])
    assert [node["node"] for node in found["nodes"]] == ["rollout-10", "rollout-11"]
    assert (found["num_nodes"], found["roles"], found["extent"]) == (12, ["rollout", "trainer"], (0.0, 20.0))
    assert asked(bands, "start=500&end=600")["nodes"][0]["shares"] == {}


def test_short_spans_share_a_column_and_late_seconds_do_not_overflow_it() -> None:
    bands = TimeBands()
    for step in range(10):
        late = {"sampling": 1.2} if step % 4 == 3 else {}
        bands.add(TimesLine(step, 0.25 * (step + 1), 0.25, {"rollout-0": NodeTimes("rollout", late)}))
    found = asked(bands)
    assert (found["starts"], found["ends"]) == ([0, 1.5], [1.5, 2.5])
    assert found["nodes"][0]["shares"]["sampling"] == [0.8, 1.0]


def test_marks_are_the_events_of_that_part(bands: TimeBands) -> None:
    events = [
        LIVE | {"time_s": 5.0},
        {"event": "node.lost", "node": "rollout-1", "cause": "no beat", "time_s": 6.0},
        {"event": "eval.finished", "accuracy": 0.5, "policy_version": 3, "time_s": 30.0},
        {"event": "group.dropped", "time_s": 6.0},
        LIVE,
    ]
    found = asked(bands, "start=0&end=20", events)
    assert [(mark["kind"], mark["node"], mark["text"]) for mark in found["marks"]] == [
        ("publish", None, "version.live, version 3"),
        ("lost", "rollout-1", "node.lost, rollout-1, no beat"),
    ]
    assert found["extent"][1] == 20
    assert asked(bands, "", events[:3])["extent"][1] == 30


def test_a_node_has_no_time_before_it_joined() -> None:
    bands = TimeBands()
    bands.add(TimesLine(0, 10.0, 10.0, {"rollout-0": NodeTimes("rollout", {"sampling": 2.0})}))
    joined = {"event": "node.joined", "node": "rollout-0", "time_s": 6.0}
    (node,) = asked(bands, "", [joined, joined | {"time_s": 9.0}])["nodes"]
    assert (node["joined_s"], node["shares"]) == (6.0, {"sampling": [0.5]})


def test_a_node_has_no_time_after_it_was_heard_for_the_last_time() -> None:
    bands = TimeBands()
    bands.add(TimesLine(0, 10.0, 10.0, {"rollout-0": NodeTimes("rollout", {"sampling": 2.0})}))
    quiet = {"event": "node.quiet", "node": "rollout-0", "time_s": 6.0, "seconds": 2.0}
    lost = {"event": "node.lost", "node": "rollout-0", "time_s": 14.0}
    (node,) = asked(bands, "", [quiet, lost])["nodes"]
    assert (node["heard_s"], node["shares"]) == (4.0, {"sampling": [0.5]})
    back = {"event": "node.joined", "node": "rollout-0", "time_s": 15.0}
    for events in ([], [quiet, lost, back], [quiet, {"event": "node.heard", "node": "rollout-0", "time_s": 7.0}]):
        assert asked(bands, "", events)["nodes"][0]["heard_s"] is None


def test_too_many_marks_leave_the_rare_ones(bands: TimeBands) -> None:
    many = [LIVE | {"time_s": i / 100} for i in range(MAX_MARKS + 1)]
    found = asked(bands, "", [*many, {"event": "node.lost", "node": "a", "time_s": 3.0}])
    assert [mark["kind"] for mark in found["marks"]] == ["lost"]


def test_a_run_that_recorded_nothing_has_an_empty_timeline() -> None:
    found = asked(TimeBands())
    assert (found["nodes"], found["starts"], found["extent"]) == ([], [], (0.0, 0.0))
