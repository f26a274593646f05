"""Nodes are present from joining, or loading their model, until they leave, are lost, or the broker starts again."""

from typing import Any

from tests.cluster.attendance import is_restored, joins, present

STARTED = {"event": "run.started"}
RESUMED = {"event": "run.resumed"}


def joined(node: str) -> dict[str, Any]:
    return {"event": "node.joined", "node": node, "role": "reward"}


def lost(node: str) -> dict[str, Any]:
    return {"event": "node.lost", "node": node}


def test_a_node_is_present_until_it_leaves_or_is_lost() -> None:
    events = [STARTED, joined("a"), joined("b"), joined("c"), lost("a"), {"event": "node.left", "node": "b"}]
    assert present(events) == {"c"}
    assert present([*events, joined("a")]) == {"a", "c"}


def test_a_rollout_is_present_when_its_model_is_loaded() -> None:
    loading = {"event": "node.joined", "node": "a", "role": "rollout"}
    ready = {"event": "node.ready", "node": "a", "role": "rollout"}
    assert present([STARTED, loading]) == frozenset()
    assert present([STARTED, loading, ready]) == {"a"}
    assert present([STARTED, loading, ready, loading]) == frozenset()


def test_nobody_is_present_when_the_broker_has_started_again() -> None:
    assert present([STARTED, joined("a"), RESUMED]) == frozenset()


def test_joins_are_counted_over_all_brokers() -> None:
    assert joins([joined("a"), RESUMED, joined("a"), joined("b")]) == {"a": 2, "b": 1}


def test_a_run_is_restored_when_everybody_is_present_again() -> None:
    before = [STARTED, joined("a"), joined("b")]
    assert not is_restored(before, [*before, lost("a")], ended=())
    assert is_restored(before, [*before, lost("a"), joined("a")], ended=())


def test_a_node_whose_loss_is_not_noticed_yet_has_to_join_again() -> None:
    before = [STARTED, joined("a"), joined("b")]
    assert not is_restored(before, before, ended={"a"})
    assert is_restored(before, [*before, joined("a")], ended={"a"})
