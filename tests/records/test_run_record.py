import os
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.files.lock import locked
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.records.run_record import (
    EvaluationEvent,
    find_runs,
    is_served,
    is_starting,
    is_supervised,
    labels,
    overview,
    read_run,
    require_run,
    state_of,
)

MakeRun = Callable[..., RunDirectory]


def test_a_finished_run_is_read_whole(make_run: MakeRun, summary: Callable[..., RunSummary]) -> None:
    directory = make_run()
    directory.write_summary(summary())
    record = read_run(directory.path)

    assert record.notes == []
    assert (record.name, record.status, record.cause, record.wall_s) == ("tiny", "finished", "", 20.0)
    assert record.config == {"run.steps": 10, "model.path": "models/tiny", "schedule.staleness": 1.0}
    assert record.curve("reward")[:3] == [(0, 0.0), (1, 0.1), (2, 0.2)]
    assert record.evaluations() == [EvaluationEvent(0, 0.25, 64, 0.0), EvaluationEvent(10, 0.75, 64, 20.0)]


def test_a_running_run_is_read_up_to_its_last_complete_line(make_run: MakeRun) -> None:
    directory = make_run()
    with directory.metrics.open("ab") as file:
        file.write(b'{"step": 10, "rew')
    record = read_run(directory.path)

    assert record.status == "running"
    assert record.wall_s == 20.0
    assert len(record.metrics) == 10
    assert record.notes == []


def test_an_empty_directory_gives_notes_only(tmp_path: Path) -> None:
    record = read_run(tmp_path)

    assert record.status == "stopped"
    assert record.notes == [
        "config.toml is missing",
        "metrics.jsonl is missing or empty",
        "events.jsonl is missing or empty",
    ]


def test_damaged_files_are_notes_and_the_others_are_read(make_run: MakeRun) -> None:
    directory = make_run()
    directory.config.write_text("[run")
    directory.summary.write_text("{")
    directory.events.write_text("not JSON\n")
    record = read_run(directory.path)

    assert [note.split(":")[0] for note in record.notes] == [
        "config.toml cannot be read",
        f"{directory.summary} is not a summary",
        f"{directory.events} line 1 is not a JSON object",
    ]
    assert len(record.metrics) == 10


def test_without_a_summary_the_status_comes_from_the_last_event(make_run: MakeRun) -> None:
    directory = make_run()
    directory.append_event("run.finished", status="failed", cause="out of memory")
    assert (read_run(directory.path).status, read_run(directory.path).cause) == ("failed", "out of memory")

    directory.append_event("run.resumed")
    assert (read_run(directory.path).status, read_run(directory.path).cause) == ("running", "")


def test_a_run_without_an_end_runs_as_long_as_something_is_recorded(make_run: MakeRun) -> None:
    directory = make_run()
    changed_s = directory.events.stat().st_mtime
    read = [read_run(directory.path, wall_clock=lambda: changed_s + ago_s) for ago_s in (59.0, 61.0)]  # noqa: B023
    assert [(record.status, record.is_over) for record in read] == [("running", False), ("stopped", False)]
    directory.append_event("broker.refused", cause="the ledger is damaged")
    assert read_run(directory.path).status == "stopped"


def test_only_finite_numbers_are_points(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for step, kl in enumerate([0.1, float("nan"), "high", True, None, 0.6]):
        directory.append_metrics({"step": step, "kl": kl})  # type: ignore[dict-item]

    assert read_run(tmp_path).curve("kl") == [(0, 0.1), (5, 0.6)]


def test_a_version_evaluated_again_counts_once(make_run: MakeRun) -> None:
    directory = make_run()
    directory.append_event("eval.finished", policy_version=10, accuracy=0.8, num_prompts=64)

    assert read_run(directory.path).evaluations()[1:] == [EvaluationEvent(10, 0.8, 64, None)]


def test_an_evaluation_in_which_every_prompt_failed_is_no_result(make_run: MakeRun) -> None:
    directory = make_run()
    before = read_run(directory.path).evaluations()
    directory.append_event("eval.finished", policy_version=20, accuracy=0.0, num_prompts=0, failed=64)

    assert read_run(directory.path).evaluations() == before


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such run: .*nowhere is not a directory"):
        read_run(tmp_path / "nowhere")


# ── overview ──────────────────────────────────────────────────────────────────────────────────


def test_a_mistyped_run_is_answered_with_the_one_beside_it(make_run: MakeRun) -> None:
    directory = make_run()
    assert require_run(directory.path).path == directory.path
    with pytest.raises(ConfigError, match=rf"is not a run directory.*; did you mean {directory.path}\?$"):
        require_run(directory.path.with_name("tinny"))


def test_a_folder_of_runs_is_no_run_and_names_one(make_run: MakeRun) -> None:
    folder = make_run().path.parent
    for read in (require_run, read_run):
        with pytest.raises(ConfigError, match=rf"{folder} is not a run directory.*; did you mean {folder}/tiny\?$"):
            read(folder)
    (folder / "zoo").mkdir()
    (folder / "zoo" / "config.toml").touch()
    with pytest.raises(ConfigError, match=rf"it is a folder of runs: give one, such as {folder}/zoo$"):
        require_run(folder)


def test_a_finished_run_is_told_by_its_summary(make_run: MakeRun, summary: Callable[..., RunSummary]) -> None:
    directory = make_run()
    directory.write_summary(summary(held_out_failed=3, held_out_reward=0.5))
    found = overview(directory.path)
    assert (found.run, found.status, found.step, found.steps, found.reward) == ("tiny", "finished", 10, 10, 0.9)
    assert (found.base_accuracy, found.accuracy) == (summary().base_accuracy, summary().held_out_accuracy)
    assert (found.accuracy_failed, found.held_out_reward, found.wall_s) == (3, 0.5, summary().wall_s)


def test_a_run_without_an_end_and_without_a_broker_has_stopped(make_run: MakeRun) -> None:
    directory = make_run()
    directory.append_event("eval.finished", policy_version=10, accuracy=0.75, num_prompts=60, failed=4.0, reward=0.5)
    found = overview(directory.path, wall_clock=lambda: 1_700_000_060.0)
    assert (found.accuracy_failed, found.held_out_reward) == (4, 0.5)
    assert (found.status, found.step, found.steps) == ("stopped", 10, 10)
    assert (found.base_accuracy, found.accuracy, found.age_s, found.wall_s) == (0.25, 0.75, 60.0, None)
    assert found.num_bytes > 0


def test_a_damaged_summary_leaves_the_end_to_the_last_event(make_run: MakeRun) -> None:
    directory = make_run()
    directory.append_event("run.finished", status="failed", cause="out of memory")
    directory.summary.write_text("{")
    found = overview(directory.path)
    assert (found.status, found.cause, len(found.notes)) == ("failed", "out of memory", 1)


def test_a_run_whose_lock_is_held_runs(make_run: MakeRun) -> None:
    directory = make_run()
    assert not is_served(directory)
    with locked(directory.lock, "held"):
        assert overview(directory.path).status == "running"
        assert read_run(directory.path).status == "running"
    with locked(directory.supervisor_lock, "held"):
        assert is_supervised(directory)
        assert overview(directory.path).status == "stopped"
        assert read_run(directory.path).status == "running", "a broker is about to start"


def test_a_run_is_over_once_its_summary_is_written_while_the_report_is_being_written(
    make_run: MakeRun, summary: Callable[..., RunSummary]
) -> None:
    directory = make_run()
    directory.write_summary(summary())
    with locked(directory.supervisor_lock, "held"):
        assert read_run(directory.path).status == "finished"
    with locked(directory.lock, "held"):
        assert read_run(directory.path).status == "running", "its nodes are leaving"


def test_a_run_that_an_operator_paused_is_paused_until_it_is_resumed() -> None:
    paused, resumed = ({"event": kind} for kind in ("sampling.paused", "sampling.resumed"))
    for events, expected in (
        ([paused], "paused"),
        ([paused, resumed], "running"),
        ([paused, resumed, paused], "paused"),
    ):
        assert state_of(None, events, is_served=True) == expected
    assert state_of(None, [paused], is_served=False) == "stopped"


def test_a_setting_is_told_with_what_took_its_place(make_run: MakeRun) -> None:
    directory = make_run()
    for value, time_s in ((1e-4, 6.5), (5e-5, 13.0)):
        directory.append_event("setting.changed", key="trainer.lr", value=value, before=2e-4, by="alice", time_s=time_s)
    record = read_run(directory.path)
    assert (
        record.history("trainer.lr", "2e-4", str) == "2e-4; 0.0001 after 3 steps (6.5 s); 5e-05 after 6 steps (13.0 s)"
    )
    assert record.history("run.steps", "10", str) == "10"


def test_restarts_are_told_with_the_steps_before_them(make_run: MakeRun) -> None:
    directory = make_run()
    directory.append_event("run.resumed", start=2, time_s=9.0)
    assert [(one.step, one.time_s) for one in read_run(directory.path).restarts()] == [(4, 9.0)]


def test_held_out_rewards_are_those_before_the_first_step_and_of_the_last_evaluation(make_run: MakeRun) -> None:
    directory = make_run()
    assert read_run(directory.path).held_out_rewards() == (None, None)
    for version, reward in ((0, 0.1), (12, 0.6)):
        directory.append_event("eval.finished", policy_version=version, accuracy=0.5, num_prompts=8, reward=reward)
    assert read_run(directory.path).held_out_rewards() == (0.1, 0.6)


def test_a_broker_is_starting_until_it_writes_its_address_anew(make_run: MakeRun) -> None:
    directory = make_run()
    directory.address.write_text("ipc:///tmp/broker\n")
    os.utime(directory.address, (1.0, 1.0))
    assert not is_starting(directory)
    with locked(directory.lock, "held"):
        assert is_starting(directory)
        directory.address.write_text("ipc:///tmp/broker\n")
        assert not is_starting(directory)


def test_a_checkpoint_counts_once_its_manifest_is_written(make_run: MakeRun) -> None:
    directory = make_run()
    for step, is_complete in (("000002", True), ("000004", True), ("000006", False)):
        (directory.checkpoints / f"step_{step}").mkdir()
        if is_complete:
            (directory.checkpoints / f"step_{step}" / "manifest.json").touch()
    assert overview(directory.path).checkpoint == str(directory.checkpoints / "step_000004")


def test_a_pause_outlives_the_end_of_the_run(make_run: MakeRun, summary: Callable[..., RunSummary]) -> None:
    directory = make_run()
    directory.write_summary(summary(status="interrupted"))
    directory.append_event("sampling.paused", by="ann")
    assert overview(directory.path).paused_by == "ann"
    directory.append_event("sampling.resumed", by="ann")
    assert overview(directory.path).paused_by == ""


def test_damaged_files_are_noted_and_the_others_are_read(make_run: MakeRun) -> None:
    directory = make_run()
    directory.config.write_text("[run")
    directory.metrics.write_text("no json\n")
    found = overview(directory.path)
    assert (found.steps, found.reward, found.accuracy) == (None, None, 0.75)
    assert [note.split()[0].rpartition("/")[2] for note in found.notes] == ["metrics.jsonl", "config.toml"]


def test_only_folders_with_a_configuration_are_runs(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(name).path for name in ("b", "a")]
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / "file").touch()
    assert find_runs(tmp_path / "runs") == sorted(runs)
    assert find_runs(tmp_path / "nowhere") == []


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("a/runs/x", "b/runs/x", "b/runs/y")]
    assert labels(runs) == ["a/runs/x", "b/runs/x", "y"]
    assert labels([tmp_path / "x", tmp_path / "x"]) == ["x", "x"], "one run given twice"
