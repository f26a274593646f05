"""Nodes join and leave during a run, and other nodes continue their unfinished trajectories."""

import signal

import pytest

from asyncrl.broker.ledger.records import Progressed, Reissued, Result
from asyncrl.messages.trajectory import Unit
from tests.integration.conftest import ToyRun
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow("whole runs of real processes")

LONG = 400
SLOW = (
    *("sampling.max_tokens=96", "rollout.replicas=1", "rollout.slots=4"),
    *("evaluation.every_versions=0", "evaluation.at_start=false", "evaluation.at_end=false"),
)
"""Few completions at a time, so that there is nearly always an unfinished one."""


def results_of(run: ToyRun, node: str) -> int:
    """Number of trained trajectories of a node."""
    return sum(row["node"] == node for row in run.samples()) if run.happened("node.joined", node) else 0


def test_a_rollout_joins_and_leaves_when_drained_without_losing_a_token(start_run):
    run = start_run(*SLOW, steps=LONG)
    run.until(lambda: run.steps_done() >= 2)
    while not unfinished(run):  # A node drained between two leases hands over nothing: repeat.
        joiner = run.start_node("rollout", "joiner")
        seen = results_of(run, "joiner")
        run.until(lambda seen=seen: results_of(run, "joiner") > seen)
        drained = run.drain("joiner")
        assert (drained.returncode, drained.stdout, drained.stderr) == (0, "joiner has left\n", "")
        _, errors = joiner.communicate(timeout=PATIENCE_S)
        assert joiner.returncode == 0, errors

    partial = unfinished(run)
    run.until(lambda: any(isinstance(record, Result) and record.unit in partial for record in run.records()))
    assert {event["cause"] for event in run.events if event["event"] == "node.left"} == {"told to stop"}
    assert not [event for event in run.events if event["event"] == "node.lost"]
    records, audit = run.records(), run.audit()
    assert {record.cause for record in records if isinstance(record, Reissued)} == {"node_left"}
    assert (audit.problems, sum(audit.tokens_thrown_away.values()), audit.duplicates) == ([], 0, 0)
    finished = {record.unit: record.summary.num_tokens for record in records if isinstance(record, Result)}
    assert all(finished[unit] > partial[unit] for unit in partial if unit in finished), "another rollout continued them"
    run.kill()


@pytest.mark.long("one rollout joins and leaves above")
def test_replicas_join_are_restarted_and_leave_together(start_run):
    run = start_run(*SLOW, steps=LONG)
    run.until(lambda: run.steps_done() >= 1)
    machine = run.start_node("rollout", "machine", "--replicas", "2")
    run.until(lambda: results_of(run, "machine-0") and results_of(run, "machine-1"))

    run.kill_node("machine-1", machine)
    run.until(lambda: len(run.happened("node.joined", "machine-1")) == 2)
    machine.send_signal(signal.SIGTERM)
    _, errors = machine.communicate(timeout=PATIENCE_S)

    assert machine.returncode == 143, errors
    assert "was killed by SIGKILL" in errors
    left = [event["node"] for event in run.events if event["event"] == "node.left"]
    assert {"machine-0", "machine-1"} <= set(left)
    assert run.audit().problems == []
    run.kill()


def unfinished(run: ToyRun) -> dict[Unit, int]:
    """Number of tokens on disk of each trajectory that was written unfinished."""
    return {record.unit: record.summary.num_tokens for record in run.records() if isinstance(record, Progressed)}


def test_unfinished_trajectories_of_a_killed_rollout_are_continued_from_disk(start_run):
    run = start_run(*SLOW, "rollout.progress_every_s=0.05", steps=24)
    run.until_next_step()
    while not any(record.unit in unfinished(run) for record in lost(run)):  # The node held no lease: repeat.
        run.until_next_step()
        run.until_next_step()
        run.kill_node("rollout-0")
        run.until_next_step()
    assert run.end().code == 0, run.errors
    run.assert_adds_up()
    assert sum(run.audit().tokens_thrown_away.values()) == 0


def lost(run: ToyRun) -> list[Reissued]:
    """Trajectories that were leased again because their node was lost."""
    return [record for record in run.records() if isinstance(record, Reissued) and record.cause == "node_lost"]


@pytest.mark.long("a broker that is killed restarts in test_recovery.py")
def test_unfinished_trajectories_survive_a_restart_of_the_broker(start_run):
    run = start_run(*SLOW, "checkpoint.every_steps=4", steps=12)
    run.until(lambda: run.steps_done() >= 3)
    run.kill_node("broker-0")
    assert run.end().code == 0, run.errors
    run.assert_adds_up()
    (adopted,) = [event for event in run.events if event["event"] == "leases.adopted"]
    assert adopted["node"] == "rollout-0"
    assert adopted["trajectories"] > 0
    assert not [record for record in run.records() if isinstance(record, Reissued)]


def test_a_node_that_cannot_be_drained_is_refused_in_one_sentence(start_run):
    run = start_run(*SLOW, steps=LONG)
    run.until(lambda: run.steps_done() >= 1)
    for node, sentence in {
        "trainer-0": "asyncrl: trainer-0 is a trainer: only rollouts and reward nodes can be drained",
        "nobody": "asyncrl: there is no node nobody; those that can be drained are: reward-0, rollout-0",
    }.items():
        refused = run.drain(node)
        assert (refused.returncode, refused.stderr.strip()) == (78, sentence)
    run.kill()


@pytest.mark.parametrize("role", [pytest.param("rollout", marks=pytest.mark.long("loads a model twice")), "reward"])
def test_of_two_processes_of_one_name_the_older_one_ends(start_run, role):
    run = start_run(*SLOW, steps=LONG)
    run.until(lambda: run.steps_done() >= 1)
    older = run.start_node(role, "twin")
    run.until(lambda: run.happened("node.joined", "twin"))
    run.start_node(role, "twin")
    _, errors = older.communicate(timeout=PATIENCE_S)
    assert older.returncode == 78
    assert "another process has joined as twin, and takes its place" in errors.splitlines()[-1]
    seen = run.steps_done()
    run.until(lambda: run.steps_done() >= seen + 3)
    assert len(run.happened("node.joined", "twin")) == 2
    run.kill()


@pytest.mark.long("waits for the limit")
def test_a_node_that_does_not_leave_in_time_is_reported(start_run):
    run = start_run(*SLOW, steps=LONG)
    run.until(lambda: run.steps_done() >= 1)
    joiner = run.start_node("rollout", "joiner")
    run.until(lambda: run.happened("node.joined", "joiner"))
    joiner.send_signal(signal.SIGSTOP)
    late = run.drain("joiner", "--wait", "1")
    assert late.returncode == 1
    assert "joiner was asked to leave, but did not within 1 s" in late.stderr
    run.kill()
