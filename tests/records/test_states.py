"""One vocabulary: messages, metrics and the documentation say the words of `asyncrl.records.states` and no others."""

import re
from pathlib import Path
from typing import get_args, get_type_hints

from asyncrl.messages.supervisor import Finished, NodeStatus, Status
from asyncrl.records.metrics import METRICS
from asyncrl.records.node_states import STATES
from asyncrl.records.run_directory import RunSummary
from asyncrl.records.states import (
    CONNECTED_STATES,
    GROUP_STATES,
    NODE_STATES,
    RUN_STATES,
    GroupState,
    NodeState,
    RunOutcome,
    RunState,
    progress,
)
from asyncrl.tools.report.report import SIGNS

ROOT = Path(__file__).parents[2]


def test_every_word_has_a_meaning() -> None:
    for words, meanings in ((RunState, RUN_STATES), (GroupState, GROUP_STATES), (NodeState, NODE_STATES)):
        assert set(get_args(words)) == set(meanings)


def test_messages_and_the_summary_say_these_words() -> None:
    outcomes = set(get_args(RunOutcome))
    assert outcomes == set(get_args(get_type_hints(Finished)["status"]))
    assert outcomes == set(get_args(get_type_hints(RunSummary)["status"]))
    assert set(get_args(get_type_hints(Status)["state"])) | outcomes | {"stopped"} == RUN_STATES.keys()
    gone = {"left", "lost", "exited"}
    assert set(get_args(get_type_hints(NodeStatus)["state"])) == NODE_STATES.keys() - gone - {"ready"}
    assert set(CONNECTED_STATES) == NODE_STATES.keys() - gone - {"working", "waiting"}


def test_metrics_are_labelled_with_these_words() -> None:
    assert METRICS["asyncrl_broker_groups"].labels["state"] == tuple(GROUP_STATES)
    assert METRICS["asyncrl_broker_nodes"].labels["state"] == CONNECTED_STATES


def test_pages_show_these_words() -> None:
    assert SIGNS.keys() == RUN_STATES.keys() - {"ending"}
    assert set(STATES.values()) == NODE_STATES.keys() - {"working", "waiting"}
    style = (ROOT / "asyncrl/tools/dashboard/static/style.css").read_text()
    styled = set(re.findall(r"\.pill\.(\w+)", style))
    assert styled <= RUN_STATES.keys() | NODE_STATES.keys()


def test_the_documentation_names_every_state_of_a_group_and_of_a_connected_node() -> None:
    text = (ROOT / "docs/operations.md").read_text()
    words = {*GROUP_STATES, *CONNECTED_STATES, "working", "waiting"}
    assert {word for word in words if f"`{word}`" not in text} == set()


def test_a_state_and_its_progress_begin_a_sentence() -> None:
    told = {
        ("finished", 40, 40): "Finished 40 of 40 steps",
        ("failed", 3, 40): "Failed after step 3 of 40",
        ("stopped", 3, None): "Stopped after step 3",
        ("interrupted", 0, 40): "Interrupted before the first step",
        ("running", 3, 40): "Running at step 3 of 40",
        ("ending", 3, 40): "Ending at step 3 of 40",
    }
    assert {args: progress(*args) for args in told} == told  # type: ignore[arg-type]
