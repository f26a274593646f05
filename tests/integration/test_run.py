"""`asyncrl run` with real processes: its records are consistent, and a killed rollout does not end it."""

import os
import signal
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import msgspec
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from asyncrl.broker.ledger.audit import Audit
from asyncrl.broker.ledger.records import (
    Admitted,
    AnyRecord,
    Committed,
    Dropped,
    Reissued,
    Taken,
    VersionLive,
)
from asyncrl.cli.main import main
from tests.integration.conftest import TWO_ROLLOUTS

STEPS, GROUPS_PER_STEP, GROUP_SIZE = 8, 4, 4


@pytest.fixture(scope="module")
def finished(start_shared_run):
    """One undisturbed run, shared by several tests."""
    run = start_shared_run(steps=STEPS)
    run.until(lambda: run.steps_done() >= 1)
    return run.end()


def peak_open(records: Iterable[AnyRecord]) -> int:
    """Most groups open at once, counted from the ledger alone."""
    open_groups: set[int] = set()
    taken: dict[int, list[int]] = {}
    peak = 0
    for record in records:
        match record:
            case Admitted(group_id=group_id):
                open_groups.add(group_id)
            case Taken(step=step, group_ids=group_ids):
                taken[step] = group_ids
            case Dropped(group_id=group_id):
                open_groups.discard(group_id)
            case VersionLive(next_step=next_step):
                for step in [step for step in taken if step < next_step]:
                    open_groups.difference_update(taken.pop(step))
        peak = max(peak, len(open_groups))
    return peak


# ── an undisturbed run ──────────────────────────────────────────────────────────────────────


def test_the_run_finishes_with_exit_code_0(finished):
    assert finished.code == 0, finished.errors
    assert finished.errors == ""


def test_every_role_has_its_own_process(finished):
    """Supervisor, broker, trainer, reward, two rollouts; and the reward's workers."""
    assert finished.most_processes >= 6


def test_the_summary_is_complete(finished):
    summary = finished.summary
    assert (summary.status, summary.cause, summary.name, summary.seed) == ("finished", "", "toy", 7)
    assert (summary.steps, summary.steps_planned, summary.versions) == (STEPS, STEPS, STEPS)
    assert summary.wall_s > 0
    assert summary.trained_tokens == sum(line["tokens"] for line in finished.directory.read_metrics())
    assert summary.base_accuracy is not None
    assert summary.held_out_accuracy is not None
    assert 0 <= summary.staleness_mean <= summary.staleness_max <= 1
    assert summary.logprob_gap_mean is not None
    assert 0 <= summary.logprob_gap_mean <= (summary.logprob_gap_max or 0) < 1e-4


def test_the_ledger_is_consistent(finished):
    records = finished.records()
    finished.assert_adds_up()
    assert [record.step for record in records if isinstance(record, Committed)] == [STEPS - 1]
    versions = [record.policy_version for record in records if isinstance(record, VersionLive)]
    assert (versions[0], versions[-1]) == (0, STEPS)
    # The window lets the trainer stage one version more while a rollout that joins late gets an earlier one.
    assert {after - before for before, after in pairwise(versions)} <= {1, 2}


def test_the_audit_agrees_with_the_summary(finished):
    result = CliRunner().invoke(main, ["audit", "--json", str(finished.directory.path)])
    assert result.exit_code == 0, result.output
    audit = msgspec.json.decode(result.output, type=Audit)
    groups = STEPS * GROUPS_PER_STEP
    assert (audit.issued, audit.trained, audit.committed, audit.dropped, audit.open) == (groups, groups, groups, {}, 0)
    assert (audit.steps, audit.peak_open, audit.window) == (STEPS, 8, 8)
    assert sum(bucket.trained for bucket in audit.lengths) == groups * GROUP_SIZE
    summary, total = finished.summary, sum(staleness * count for staleness, count in audit.staleness.items())
    assert (audit.tokens_trained, audit.staleness_max) == (summary.trained_tokens, summary.staleness_max)
    assert total / (groups * GROUP_SIZE) == pytest.approx(summary.staleness_mean)


def test_the_number_of_open_groups_never_exceeds_the_window(finished):
    assert finished.config.schedule.window == 8
    assert peak_open(finished.records()) == 8


def test_every_consumed_trajectory_is_in_the_samples(finished):
    rows = pq.read_table(finished.directory.samples).to_pylist()
    assert len(rows) == STEPS * GROUPS_PER_STEP * GROUP_SIZE
    assert len({(row["group_id"], row["index"]) for row in rows}) == len(rows)
    for row in rows:
        spans = row["spans"]
        assert [span["start"] for span in spans] == [0, *(span["end"] for span in spans[:-1])]
        assert spans[-1]["end"] == row["num_tokens"] == len(row["completion_ids"]) == len(row["behavior_logprobs"])
        versions = [span["policy_version"] for span in spans]
        assert versions == sorted(set(versions)), "a trajectory that met new weights has a span of each version"
        assert row["oldest_version"] == versions[0]
        assert row["finish_reason"] == ("length" if row["completion_ids"][-1] != 1 else "stop")
        assert row["node"] == "rollout-0"
        assert row["reward"] == row["completion"].count("a") % 3


def test_the_metrics_have_one_line_per_step(finished):
    lines = finished.directory.read_metrics()
    assert [line["step"] for line in lines] == list(range(STEPS))
    assert [line["version"] for line in lines] == list(range(STEPS))
    assert all(line["staleness_max"] <= 1 for line in lines)


def test_the_events_record_the_course_of_the_run(finished):
    kinds = Counter(event["event"] for event in finished.events)
    assert kinds["run.started"] == kinds["run.finished"] == 1
    assert kinds["version.live"] == sum(isinstance(record, VersionLive) for record in finished.records())
    assert kinds["checkpoint.written"] == 1
    joined = {event["node"] for event in finished.events if event["event"] == "node.joined"}
    assert {"rollout-0", "reward-0", "trainer-0"} <= joined
    assert finished.events[-1]["event"] == "run.finished" or kinds["run.finished"]


def test_the_output_has_one_line_per_step_and_ends_with_the_paths(finished):
    lines = finished.output.splitlines()
    assert sum(line.startswith("step ") for line in lines) == STEPS
    assert lines[-5].startswith(f"finished: {STEPS} of {STEPS} steps")
    assert lines[-4].split() == ["dashboard", "asyncrl", "dashboard", "runs/toy"]
    assert lines[-1].split() == ["checkpoint", "runs/toy/checkpoints/step_000008"]
    assert "\x1b" not in finished.output, "no colours without a terminal"


def test_the_checkpoint_is_a_model_directory(finished):
    checkpoint = finished.directory.checkpoints / f"step_{STEPS:06d}"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in checkpoint.rglob("*")}


def test_the_resolved_configuration_is_kept(finished):
    assert finished.config.run.steps == STEPS
    assert msgspec.to_builtins(finished.config)["sampling"]["max_tokens"] == 96


# ── a rollout is killed ─────────────────────────────────────────────────────────────────────


@pytest.mark.long("test_join_and_leave.py kills one")
def test_a_killed_rollout_does_not_end_the_run(start_run):
    steps = 100  # Enough for several tries to freeze it at work.
    run = start_run(TWO_ROLLOUTS, "weights.deadline_s=5", steps=steps)
    run.until(lambda: run.steps_done() >= 2)
    os.kill(run.freeze_at_work("rollout-0"), signal.SIGKILL)
    assert run.end().code == 0, run.errors
    assert run.summary.steps == steps
    records = run.records()
    run.assert_adds_up()
    assert peak_open(records) <= run.config.schedule.window
    (exited,) = [event for event in run.events if event["event"] == "node.exited"]
    assert exited["node"] == "rollout-0"
    assert "SIGKILL" in exited["cause"]
    assert exited["restarting"]
    assert {record.cause for record in records if isinstance(record, Reissued)} <= {"silent", "node_lost"}
    assert "rollout-0 was killed by SIGKILL; starting it again" in run.output


# ── other settings ──────────────────────────────────────────────────────────────────────────


@pytest.mark.slow("whole runs of real processes")
def test_staleness_0_is_synchronous(start_run):
    run = start_run("staleness=0", steps=4).end()
    assert run.code == 0, run.errors
    assert run.summary.staleness_max == 0
    assert peak_open(run.records()) == GROUPS_PER_STEP
    assert all(len(row["spans"]) == 1 for row in pq.read_table(run.directory.samples).to_pylist())


@pytest.mark.long("one more whole run")
def test_without_partial_rollout_every_trajectory_has_one_version(start_run):
    run = start_run("schedule.partial_rollout=false", steps=6).end()
    assert run.code == 0, run.errors
    assert all(len(row["spans"]) == 1 for row in pq.read_table(run.directory.samples).to_pylist())


@pytest.mark.long("one more whole run")
def test_several_steps_make_one_version(start_run):
    run = start_run("schedule.steps_per_publish=2", "staleness=0.5", "schedule.order=completion", steps=5).end()
    assert run.code == 0, run.errors
    assert run.summary.versions == 3
    run.assert_adds_up()
    assert peak_open(run.records()) <= 12
