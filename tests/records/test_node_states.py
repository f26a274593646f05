"""A node that is gone is absent until it is back, or another of its role has come in its place."""

from typing import Any

from asyncrl.records.node_states import NodeStates


def event(kind: str, node: str = "", role: str = "rollout", **fields: Any) -> dict[str, Any]:
    return {"event": kind, "node": node, "role": role, **fields} if node else {"event": kind, **fields}


JOINED = [event("node.joined", name) for name in ("a", "b")]


def absent(*events: dict[str, Any]) -> list[str]:
    return [f"{node.name} {node.state}" for node in NodeStates([*JOINED, *events]).absent]


def test_a_lost_node_is_absent_with_its_cause_until_it_is_back() -> None:
    states = NodeStates([*JOINED, event("node.lost", "a", cause="silent for 10 s", time_s=5.0)])
    (lost,) = states.absent
    assert (lost.name, lost.state, lost.cause, lost.since_s) == ("a", "lost", "silent for 10 s", 5.0)
    states.add(event("node.joined", "a"))
    assert states.absent == []


def test_another_of_its_role_takes_the_place_of_the_one_that_is_away_longest() -> None:
    gone = [event("node.exited", "b", cause="was killed"), event("node.lost", "a")]
    assert absent(*gone) == ["b exited", "a lost"]
    assert absent(*gone, event("node.joined", "reward-1", "reward")) == ["b exited", "a lost"]
    assert absent(*gone, event("node.joined", "c")) == ["a lost"]
    assert absent(*gone, event("node.joined", "c"), event("node.joined", "d")) == []


def test_who_left_on_purpose_or_never_joined_or_only_watches_is_not_absent() -> None:
    assert absent(event("node.left", "a", cause="told to stop")) == []
    assert absent({"event": "node.exited", "node": "broker-0", "cause": "was killed"}) == []
    assert absent(*(event(kind, "operator-1", "supervisor") for kind in ("node.joined", "node.lost"))) == []


def test_who_left_on_purpose_is_absent_while_nobody_of_its_role_is_there() -> None:
    left = [event("node.left", "a", cause="an operator drained it"), event("node.left", "b")]
    assert absent(*left) == ["a left", "b left"]
    assert absent(*left, event("node.joined", "c")) == []
    assert absent(left[0], event("node.lost", "b")) == ["a left", "b lost"]


def test_after_a_restart_of_the_broker_who_has_not_joined_it_is_absent() -> None:
    restarted = event("run.resumed", time_s=30.0)
    assert absent(restarted) == ["a silent", "b silent"]
    assert absent(restarted, event("node.joined", "b")) == ["a silent"]
    assert absent(event("node.left", "a"), restarted) == ["b silent"]


def test_a_node_that_was_drained_says_by_whom_and_not_that_it_was_told() -> None:
    draining = {"event": "node.draining", "node": "a", "by": "alice"}
    states = NodeStates([JOINED[0], draining, event("node.left", "a", cause="told to stop")])
    assert [node.cause for node in states.absent] == ["drained by alice"]
