from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.observe.run_directory import RunDirectory, RunSummary
from asyncrl.observe.run_record import EvaluationEvent, read_run

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

    assert record.status == "open"
    assert record.wall_s == 20.0
    assert len(record.metrics) == 10
    assert record.notes == ["summary.json does not exist yet: the run is still running, or it was killed"]


def test_an_empty_directory_gives_notes_only(tmp_path: Path) -> None:
    record = read_run(tmp_path)

    assert record.status == "open"
    assert record.notes == [
        "config.toml is missing",
        "summary.json does not exist yet: the run is still running, or it was killed",
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
    assert (read_run(directory.path).status, read_run(directory.path).cause) == ("open", "")


def test_only_finite_numbers_are_points(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for step, kl in enumerate([0.1, float("nan"), "high", True, None, 0.6]):
        directory.append_metrics({"step": step, "kl": kl})  # type: ignore[dict-item]

    assert read_run(tmp_path).curve("kl") == [(0, 0.1), (5, 0.6)]


def test_a_mean_may_be_weighted(tmp_path: Path) -> None:
    """(1 s x 0.1 + 3 s x 0.5) / 4 s = 0.4."""
    directory = RunDirectory(tmp_path)
    directory.append_metrics({"step": 0, "step_s": 1.0, "wait_trainer": 0.1})
    directory.append_metrics({"step": 1, "step_s": 3.0, "wait_trainer": 0.5})
    record = read_run(tmp_path)

    assert record.mean("wait_trainer", "step_s") == pytest.approx(0.4)
    assert record.mean("wait_trainer") == pytest.approx(0.3)
    assert record.mean("wait_trainer", "nothing") == pytest.approx(0.3)
    assert record.mean("nothing") is None
    assert record.total("step_s") == 4.0


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
