from typing import Any

from asyncrl.observe.dashboard.cluster_view import nodes
from asyncrl.observe.dashboard.timeline.time_bands import TimeBands
from asyncrl.observe.times import NodeTimes, TimesLine


def event(kind: str, node: str = "rollout-0", **fields: Any) -> dict[str, Any]:
    return {"event": f"node.{kind}", "node": node, "role": "rollout", **fields}


def states(*events: dict[str, Any]) -> list[tuple[str, str]]:
    return [(node.name, node.state) for node in nodes(events, TimeBands(), {})]


def test_a_node_is_what_its_last_event_says() -> None:
    assert states(event("joined")) == [("rollout-0", "joined")]
    assert states(event("joined"), event("ready")) == [("rollout-0", "ready")]
    assert states(event("joined"), event("ready"), event("quiet")) == [("rollout-0", "quiet")]
    assert states(event("ready"), event("quiet"), event("heard")) == [("rollout-0", "ready")]
    assert states(event("ready"), event("left", cause="done")) == [("rollout-0", "left")]


def test_a_reward_node_is_ready_once_it_has_joined() -> None:
    assert states(event("joined", "reward-0", role="reward")) == [("reward-0", "ready")]


def test_losses_are_counted_once_and_keep_their_cause_after_the_node_is_back() -> None:
    (node,) = nodes(
        [
            event("joined", time_s=1.0),
            event("exited", cause="was killed by SIGKILL", time_s=5.0),
            event("lost", cause="its connection is gone", time_s=6.0),
            event("joined", time_s=9.0),
            event("ready", time_s=11.0),
        ],
        TimeBands(),
        {"rollout-0": 4},
    )
    assert (node.state, node.losses, node.joined, node.since_s) == ("ready", 1, 2, 11.0)
    assert (node.cause, node.version) == ("was killed by SIGKILL", 4)


def test_shares_of_time_are_those_of_the_last_spans_and_add_nodes_without_events() -> None:
    bands = TimeBands()
    for step in range(30):
        work = {"training": 1.0} if step < 10 else {"training": 0.5, "waiting for sampling": 1.5}
        bands.add(TimesLine(step, 2.0 * step, 2.0, {"trainer-0": NodeTimes("trainer", work)}))
    found = nodes([event("ready")], bands, {})
    assert [(node.name, node.role) for node in found] == [("trainer-0", "trainer"), ("rollout-0", "rollout")]
    assert found[0].shares == {"waiting for sampling": 0.75, "training": 0.25}
    assert found[1].shares == {}


def test_events_without_a_node_and_hostile_ones_are_passed_over() -> None:
    assert states({"event": "node.lost"}, {"event": "node.lost", "node": 3}, {"event": ["x"]}, {}) == []
