"""The message about what a run waits for before its first step."""

from asyncrl.cli.launch.startup import awaited

NODES = ["trainer-0", "reward-0", "rollout-0", "rollout-1"]


def event(kind: str, node: str = "", **fields: str) -> dict[str, str]:
    return {"event": kind, "node": node, "role": node.partition("-")[0], **fields}


JOINED = [event("run.started"), *(event("node.joined", node) for node in NODES)]
READY = [*JOINED, *(event("node.ready", node) for node in ("trainer-0", "rollout-0", "rollout-1"))]


def test_no_node_has_joined():
    assert awaited(NODES, []) == "trainer-0, reward-0, rollout-0 and 1 more to start"


def test_some_nodes_load_while_others_start():
    assert awaited(NODES, JOINED[:3]) == "rollout-0 and rollout-1 to start, trainer-0 to load the model"


def test_a_reward_node_has_no_model_to_load():
    assert awaited(NODES, JOINED) == "trainer-0, rollout-0 and rollout-1 to load the model"


def test_a_node_that_died_while_loading_must_start_again():
    died = [*JOINED, event("node.lost", "rollout-0")]
    assert awaited(["rollout-0"], died) == "rollout-0 to start"
    assert awaited(["rollout-0"], [*READY, event("node.joined", "rollout-0")]) == "rollout-0 to load the model"


def test_all_have_loaded():
    assert awaited(NODES, READY) == "the rollouts to receive the weights"
    assert awaited(NODES, [*READY, event("version.live")]) == ""


def test_events_before_a_resume_do_not_count():
    assert awaited(["rollout-0"], [*READY, event("version.live"), event("run.resumed")]) == "rollout-0 to start"
