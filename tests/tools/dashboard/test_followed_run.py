import os
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import NO_SUMMARY, read_run
from asyncrl.tools.dashboard.api import FollowedRun
from tests.recorded_runs import MakeRun


def test_a_run_is_read_as_a_report_reads_it(make_run: MakeRun) -> None:
    directory = make_run()
    run = FollowedRun(directory.path)
    assert run.refresh()
    assert run.record == read_run(directory.path)


def test_only_what_is_new_is_read(make_run: MakeRun) -> None:
    directory = make_run()
    run = FollowedRun(directory.path)
    run.refresh()
    assert not run.refresh()
    before = run.record
    directory.append_metrics({"step": 10, "reward": 0.5})
    directory.append_event("node.lost", node="rollout-0")
    assert run.refresh()
    assert (run.record.metrics[:-1], run.record.metrics[-1]["reward"]) == (before.metrics, 0.5)
    assert (len(run.record.events), len(before.events)) == (len(before.events) + 1, 3)
    assert (run.revision, run.rewrites) == (2, 0)


def test_a_line_counts_once_it_is_whole(make_run: MakeRun) -> None:
    directory = make_run()
    run = FollowedRun(directory.path)
    run.refresh()
    with directory.metrics.open("a") as file:
        file.write('{"step": 10, "rew')
        file.flush()
        run.refresh()
        assert len(run.record.metrics) == 10
        file.write('ard": 1}\n')
    run.refresh()
    assert run.record.metrics[-1] == {"step": 10, "reward": 1}


def test_a_step_that_is_recorded_again_counts_as_a_rewrite(make_run: MakeRun) -> None:
    directory = make_run()
    run = FollowedRun(directory.path)
    run.refresh()
    directory.append_metrics({"step": 7, "reward": 9.0})
    run.refresh()
    assert run.rewrites == 1
    assert [line["step"] for line in run.record.metrics] == list(range(10))
    assert run.record.metrics[7]["reward"] == 9.0


def test_a_file_that_was_replaced_is_read_anew(make_run: MakeRun) -> None:
    directory = make_run()
    run = FollowedRun(directory.path)
    run.refresh()
    directory.metrics.write_text('{"step": 0, "reward": 3.0}\n')
    run.refresh()
    assert (run.record.metrics, run.rewrites) == ([{"step": 0, "reward": 3.0}], 1)


def test_the_end_of_a_run_and_its_resumption_are_noticed(make_run: MakeRun, summary) -> None:
    directory = make_run()
    run = FollowedRun(directory.path)
    run.refresh()
    assert (run.record.status, run.record.notes) == ("stopped", [NO_SUMMARY])
    directory.write_summary(summary())
    run.refresh()
    assert (run.record.status, run.record.notes) == ("finished", [])
    directory.summary.unlink()
    run.refresh()
    assert run.record.summary is None


def test_damaged_files_become_notes_and_the_others_are_read(make_run: MakeRun) -> None:
    directory = make_run()
    directory.config.write_text("[run")
    directory.summary.write_text("{}")
    with directory.events.open("a") as file:
        file.write("nonsense\n")
    run = FollowedRun(directory.path)
    run.refresh()
    assert len(run.record.metrics) == 10
    assert len(run.record.notes) == 3
    assert any("events.jsonl" in note for note in run.record.notes)


def test_the_last_change_is_that_of_metrics_or_events(make_run: MakeRun) -> None:
    directory = make_run()
    os.utime(directory.metrics, (1000, 1000))
    os.utime(directory.events, (2000, 2000))
    run = FollowedRun(directory.path)
    run.refresh()
    assert run.changed_s == 2000


def test_a_folder_that_is_not_there_is_refused_and_an_empty_one_is_an_open_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such run"):
        FollowedRun(tmp_path / "none")
    run = FollowedRun(tmp_path)
    run.refresh()
    assert (run.record.status, run.record.metrics, run.changed_s) == ("stopped", [], None)
    RunDirectory(tmp_path).append_event("run.started")
    run.refresh()
    assert len(run.events) == 1
