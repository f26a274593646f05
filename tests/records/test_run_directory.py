import resource
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from asyncrl.errors import ConfigError, LedgerError, RunFailed
from asyncrl.records.run_directory import RunDirectory, RunSummary


def test_an_existing_name_gets_a_number_and_nothing_is_overwritten(tmp_path: Path) -> None:
    names = [RunDirectory.create(tmp_path / "runs", "sums").path.name for _ in range(3)]

    assert names == ["sums", "sums-2", "sums-3"]
    assert sorted(folder.name for folder in (tmp_path / "runs" / "sums").iterdir()) == [
        "checkpoints",
        "logs",
        "samples",
        "spool",
    ]


def test_a_directory_that_cannot_be_made_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")

    with pytest.raises(ConfigError, match=r"run\.dir .*runs is a file, not a folder"):
        RunDirectory.create(tmp_path / "runs", "sums")
    with pytest.raises(ConfigError, match=r"cannot create the run directory .*: Not a directory"):
        RunDirectory.create(tmp_path / "runs" / "deeper", "sums")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/tmp/x"])
def test_a_run_stays_below_the_folder_of_runs(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.name is '.*': expected the name of a single folder"):
        RunDirectory.create(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_events_carry_their_kind_and_the_time_of_day(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path, wall_clock=lambda: 1_767_225_600.1234)
    directory.append_event("node.lost", node="rollout-1", cause="no beat for 10.0 s")

    assert directory.read_events() == [
        {"event": "node.lost", "at": "2026-01-01T00:00:00.123Z", "node": "rollout-1", "cause": "no beat for 10.0 s"}
    ]


def test_a_step_done_again_after_a_resume_counts_once(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for step, reward in ((0, 0.1), (1, 0.2), (2, 0.3), (1, 0.25), (2, 0.35), (3, 0.4)):
        directory.append_metrics({"step": step, "reward": reward})

    assert [line["reward"] for line in directory.read_metrics()] == [0.1, 0.25, 0.35, 0.4]


def test_a_summary_reads_back_equal_and_has_exactly_the_promised_fields(
    tmp_path: Path, summary: Callable[..., RunSummary]
) -> None:
    directory = RunDirectory(tmp_path)
    failed = summary(status="failed", cause="rollout-0 exited", held_out_accuracy=None)
    directory.write_summary(failed)

    assert directory.read_summary() == failed
    assert set(msgspec.json.decode(directory.summary.read_bytes())) == {
        "name", "status", "cause", "seed", "steps", "steps_planned", "goal", "versions", "wall_s",
        "base_accuracy", "held_out_accuracy", "held_out_failed", "held_out_reward", "trained_tokens",
        "tokens_per_s", "step_s", "wait_trainer", "wait_rollout", "staleness_mean", "staleness_max", "logprob_gap_mean",
        "logprob_gap_max",
        "ledger_records", "ledger_head", "failed", "failures", "groups_issued", "groups_failed",
    }  # fmt: skip


def test_a_summary_that_is_returned_has_places_that_its_file_does_not_have(
    tmp_path: Path, summary: Callable[..., RunSummary], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = RunDirectory.create(Path("runs"), "tiny")
    assert (directory.located(summary()).directory, directory.located(summary()).checkpoint) == (
        str(tmp_path / "runs" / "tiny"),
        "",
    )
    for step, manifest in (("step_000002", '{"files": {}}'), ("step_000003", "")):
        (directory.checkpoints / step).mkdir()
        (directory.checkpoints / step / "manifest.json").write_text(manifest)
    located = directory.located(summary())
    assert located.checkpoint == str(tmp_path / "runs" / "tiny" / "checkpoints" / "step_000002")
    directory.write_summary(located)
    assert directory.read_summary() == summary()


def test_no_summary_is_none_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert directory.read_summary() is None

    directory.summary.write_text('{"name": "x"}')
    with pytest.raises(LedgerError, match=r"summary\.json is not a summary: Object missing required field"):
        directory.read_summary()


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_only_a_run_that_made_its_steps_has_a_finished_summary(
    tmp_path: Path, summary: Callable[..., RunSummary], status: str
) -> None:
    directory = RunDirectory(tmp_path)
    assert directory.finished_summary() is None
    directory.write_summary(summary(status=status))
    assert directory.finished_summary() is None
    directory.write_summary(summary(status="finished"))
    assert directory.finished_summary() == summary(status="finished")


def test_reopening_a_run_deletes_its_summary(tmp_path: Path, summary: Callable[..., RunSummary]) -> None:
    directory = RunDirectory.create(tmp_path, "sums")
    directory.config.write_text("")
    directory.write_summary(summary())
    directory.logs.rmdir()

    again = RunDirectory.reopen(directory.path)

    assert again.read_summary() is None
    assert again.logs.is_dir()


def test_a_directory_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no run to resume: .*config\.toml does not exist"):
        RunDirectory.reopen(tmp_path)


def test_a_full_disk_leaves_the_old_configuration_whole(tmp_path: Path) -> None:
    """A restarting broker rewrites config.toml; a run with a partial one could not be resumed."""
    directory = RunDirectory.create(tmp_path, "sums")
    directory.write_config("seed = 7\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, hard))
    try:
        with pytest.raises(RunFailed, match=r"cannot write .*config\.toml: File too large; free space"):
            directory.write_config("seed = 8\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert directory.config.read_text() == "seed = 7\n"


def test_a_summary_that_does_not_fit_on_the_disk_is_named(tmp_path: Path, summary: Callable[..., RunSummary]) -> None:
    directory = RunDirectory(tmp_path)
    directory.summary.mkdir()

    with pytest.raises(RunFailed, match=r"cannot write .*summary\.json: "):
        directory.write_summary(summary())
