"""The frame around a run: checks before, summary, report and outcome after. The supervisor is a fake."""

import asyncio
import os
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode, load_config, to_toml, with_absolute_paths, with_backend
from asyncrl.errors import AsyncrlError, ConfigError, LinkError, RunFailed, RunInterrupted
from asyncrl.files.lock import locked
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.runtime import launch as run_module
from asyncrl.runtime.launch import dry_run, resume, run
from asyncrl.runtime.screen import RunConsole

METRICS: dict[str, float] = {
    "step": 0,
    "version": 1,
    "time_s": 2.5,
    "tokens": 100,
    "staleness_mean": 0.5,
    "staleness_max": 1,
}
SUMMARY = RunSummary(
    name="tiny",
    status="finished",
    seed=0,
    steps=3,
    steps_planned=3,
    versions=3,
    wall_s=6.0,
    base_accuracy=0.25,
    held_out_accuracy=0.75,
    trained_tokens=300,
    staleness_mean=0.5,
    staleness_max=1,
)

Install = Callable[[Callable[[RunDirectory], None]], None]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return decode(
        {
            "run": {"steps": 3, "dir": str(tmp_path / "runs"), "name": "tiny"},
            "model": {"path": "m"},
            "data": {"train": "t"},
        }
    )


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """Receives the terminal output; datasets, models and functions are not checked."""
    text = StringIO()
    monkeypatch.setattr(run_module, "RunConsole", lambda **options: RunConsole(text, width=200, **options))
    monkeypatch.setattr(run_module, "CHECKS", {})
    monkeypatch.setattr(run_module, "check_architecture", lambda *_: [])
    monkeypatch.setattr(run_module, "examine", lambda *_: [])
    return text


@pytest.fixture
def supervised(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Replaces the supervisor by a function of the run directory."""

    def install(action: Callable[[RunDirectory], None]) -> None:
        class FakeSupervisor:
            def __init__(self, _config: Config, directory: RunDirectory, *_: Any, **__: Any) -> None:
                self._directory = directory

            async def run(self, _stopping: asyncio.Event) -> None:
                action(self._directory)

        monkeypatch.setattr(run_module, "RunSupervisor", FakeSupervisor)

    return install


def failing(error: AsyncrlError) -> Callable[[RunDirectory], None]:
    def action(directory: RunDirectory) -> None:
        directory.append_metrics(METRICS)
        directory.append_event("units.failed", stage="reward", cause="boom", count=7)
        raise error

    return action


def test_a_finished_run_ends_with_a_report_and_the_paths_of_its_results(
    config: Config, supervised: Install, printed: StringIO, tmp_path: Path
) -> None:
    supervised(lambda directory: directory.write_summary(SUMMARY))
    returned = run(config)

    directory = RunDirectory(tmp_path / "runs" / "tiny")
    assert returned == directory.located(SUMMARY)
    assert load_config(directory.config) == with_backend(with_absolute_paths(config, Path.cwd()))
    lines = printed.getvalue().splitlines()
    assert lines[1].startswith("finished: 3 of 3 steps in 6.0 s, held-out accuracy 25.0% -> 75.0%")
    assert f"report      {directory.report}" in lines
    assert not any(line.startswith("resume") for line in lines)


def test_failures_are_in_the_last_lines(config: Config, supervised: Install, printed: StringIO) -> None:
    summary = structs.replace(SUMMARY, failures=["ValueError in 12 of 30 verdicts: no number"])
    supervised(lambda directory: directory.write_summary(summary))
    run(config)
    assert "failed      ValueError in 12 of 30 verdicts: no number" in printed.getvalue().splitlines()


def test_a_run_is_possible_inside_a_running_event_loop(config: Config, supervised: Install, printed: StringIO) -> None:
    supervised(lambda directory: directory.write_summary(SUMMARY))

    async def notebook() -> RunSummary:
        return run(config)

    assert asyncio.run(notebook()).name == SUMMARY.name


def test_overrides_are_texts_or_a_list_of_them(
    config: Config, supervised: Install, printed: StringIO, tmp_path: Path
) -> None:
    supervised(lambda directory: directory.write_summary(SUMMARY))
    (tmp_path / "tiny.toml").write_text(to_toml(config))
    for number, overrides in enumerate(((["run.steps=7", "run.seed=5"],), ("run.steps=7", "run.seed=5"))):
        directory = run(tmp_path / "tiny.toml", *overrides, f"run.name=n{number}").directory
        assert directory
        named = load_config(RunDirectory(Path(directory)).config).run
        assert (named.steps, named.seed) == (7, 5)


def test_a_quiet_run_prints_nothing_and_keeps_its_lines(
    config: Config, supervised: Install, printed: StringIO, tmp_path: Path
) -> None:
    supervised(lambda directory: directory.write_summary(SUMMARY))
    run(config, is_quiet=True)
    assert printed.getvalue() == ""
    assert "finished: 3 of 3 steps" in RunDirectory(tmp_path / "runs" / "tiny").screen.read_text()


def test_settings_in_a_dict_are_no_run_file() -> None:
    with pytest.raises(ConfigError, match=r"^expected the path of a run file, got dict"):
        run({"run": {"steps": 3}})  # type: ignore[arg-type]


def test_a_dry_run_prints_the_settings_and_starts_nothing(
    config: Config, supervised: Install, printed: StringIO, tmp_path: Path
) -> None:
    supervised(failing(RunFailed("must not start")))
    dry_run(config)

    assert "run.steps = 3" in printed.getvalue()
    assert "trainer.lr" not in printed.getvalue()
    assert "would start: 1 broker" in printed.getvalue()
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_counts_one_rollout_in_the_singular(config: Config, printed: StringIO) -> None:
    dry_run(structs.replace(config, rollout=structs.replace(config.rollout, replicas=1)))
    assert "(with spool), 1 rollout, 1 reward" in printed.getvalue()


def test_a_dry_run_says_that_a_reward_of_ones_own_was_not_tried(config: Config, printed: StringIO) -> None:
    dry_run(config)
    assert "no reward was computed" not in printed.getvalue()
    reward = structs.replace(config.reward, function="grade.py:grade")
    dry_run(structs.replace(config, reward=reward))
    assert printed.getvalue().endswith("to grade some rows, asyncrl reward try FILE with this run file\n")


def test_on_the_only_device_trainer_and_rollouts_run_together_and_share_memory_for_weights(
    config: Config, supervised: Install, printed: StringIO, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    supervised(lambda directory: directory.write_summary(SUMMARY))
    device = {"trainer": structs.replace(config.trainer, device="cuda")}
    shared = structs.replace(config, **device, rollout=structs.replace(config.rollout, device="cuda"))
    dry_run(shared)
    assert "transformers on cuda 3 | cuda 3, shared with the trainer, the trainer computes on cuda 3" in (
        printed.getvalue()
    )
    assert "note: model.dtype is 'float32' with trainer.device and rollout.device = 'cuda'" in printed.getvalue()
    run(shared)
    assert load_config(tmp_path / "runs" / "tiny" / "config.toml").weights.backend == "shared"


def test_without_a_summary_of_the_broker_one_is_made_from_the_metrics(
    config: Config, supervised: Install, printed: StringIO, tmp_path: Path
) -> None:
    supervised(failing(RunFailed("the broker died")))
    with pytest.raises(RunFailed, match="the broker died") as failed:
        run(config)

    assert failed.value.__context__ is None, "the trace tells of nothing else"
    directory = RunDirectory(tmp_path / "runs" / "tiny")
    summary = directory.read_summary()
    assert summary is not None
    assert (summary.status, summary.cause, summary.steps, summary.versions) == ("failed", "the broker died", 1, 1)
    assert (summary.trained_tokens, summary.wall_s) == (100, 2.5)
    assert summary.failed == {"reward: boom": 7}
    assert f"resume      asyncrl resume {directory.path}" in printed.getvalue().splitlines()


def test_a_run_with_a_configuration_error_is_not_offered_to_be_resumed(
    config: Config, supervised: Install, printed: StringIO
) -> None:
    supervised(failing(ConfigError("trainer.lr is wrong")))
    with pytest.raises(ConfigError, match=r"trainer\.lr is wrong"):
        run(config)

    assert "asyncrl resume" not in printed.getvalue()


def test_a_failure_in_the_summary_of_the_broker_is_raised(
    config: Config, supervised: Install, printed: StringIO
) -> None:
    failed = structs.replace(SUMMARY, status="failed", cause="out of disk")
    supervised(lambda directory: directory.write_summary(failed))
    with pytest.raises(RunFailed, match="out of disk"):
        run(config)


def test_a_report_that_cannot_be_written_does_not_hide_the_outcome(
    config: Config, supervised: Install, printed: StringIO
) -> None:
    def action(directory: RunDirectory) -> None:
        directory.write_summary(SUMMARY)
        directory.report.mkdir()

    supervised(action)
    run(config)

    assert "no report was written: " in printed.getvalue()
    assert "finished: 3 of 3 steps" in printed.getvalue()


@pytest.mark.parametrize("lock", ["supervisor_lock", "lock"])
def test_a_second_resume_leaves_a_running_run_alone(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    monkeypatch.setattr(run_module, "LOCK_WAIT_S", 0.0)
    directory = RunDirectory.create(tmp_path, "old")
    directory.write_config(to_toml(config))
    directory.address.write_text("tcp://127.0.0.1:5570\n")
    before = {path: path.read_bytes() for path in directory.path.iterdir() if path.is_file()}
    with (
        locked(getattr(directory, lock), "held"),
        pytest.raises(LinkError, match="old is being run already \\(process"),
    ):
        resume(directory.path, 9)
    assert {path: path.read_bytes() for path in before} == before


def test_a_resumed_run_leaves_out_the_steps_that_its_operator_names_and_keeps_those_of_before(
    config: Config, supervised: Install, tmp_path: Path
) -> None:
    directory = RunDirectory.create(tmp_path, "old")
    directory.write_config(to_toml(config))

    def left_out() -> list[int]:
        return load_config(directory.config).run.skip_steps

    with pytest.raises(ConfigError, match=r"--skip-step 4: expected a step of the run, 1 to 3"):
        resume(directory.path, skip_steps=[4])
    assert left_out() == []
    for named, expected in (([3], [3]), ([1, 3], [1, 3]), ([], [1, 3])):
        supervised(failing(RunFailed("again")))
        with pytest.raises(RunFailed, match="again"):
            resume(directory.path, skip_steps=named)
        assert left_out() == expected


def test_a_run_that_met_its_goal_goes_on_with_another_one(
    config: Config, supervised: Install, printed: StringIO, tmp_path: Path
) -> None:
    directory = RunDirectory.create(tmp_path, "old")
    evaluated = structs.replace(config, data=structs.replace(config.data, held_out=["held_out.jsonl"]))
    directory.write_config(to_toml(structs.replace(evaluated, run=structs.replace(config.run, stop_when="reward > 1"))))
    directory.write_summary(structs.replace(SUMMARY, status="finished", steps=2, goal="reward > 1"))

    for same in ({}, {"steps": 9}, {"stop_when": "reward > 1"}):
        resume(directory.path, **same)
        assert "old is complete (2 steps (run.stop_when: reward > 1))" in printed.getvalue()
        assert "--stop-when ''" in printed.getvalue()
    with pytest.raises(ConfigError, match=r"run\.stop_when is 'reward'"):
        resume(directory.path, stop_when="reward")
    for goal in ("reward > 2", ""):
        supervised(failing(RunFailed("again")))
        with pytest.raises(RunFailed, match="again"):
            resume(directory.path, stop_when=goal)
        assert load_config(directory.config).run.stop_when == goal


def test_a_run_of_several_machines_is_not_resumed_on_one(config: Config, tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "old")
    directory.write_config(to_toml(structs.replace(config, broker=structs.replace(config.broker, bind="tcp://*:1"))))
    before = directory.config.read_text()
    with pytest.raises(ConfigError, match=r"listens on tcp://\*:1, which needs keys"):
        resume(directory.path, 9)
    assert directory.config.read_text() == before


def test_a_run_that_was_served_with_keys_is_left_to_its_services(config: Config, tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "old")
    directory.write_config(to_toml(config))
    directory.local_key.touch()
    with pytest.raises(ConfigError, match=r"old was served with keys, .* restart its services, .* remove .*old/key"):
        resume(directory.path)
    assert directory.local_key.exists()


def test_a_finished_run_is_resumed_only_to_extend_it(
    config: Config, supervised: Install, printed: StringIO, tmp_path: Path
) -> None:
    directory = RunDirectory.create(tmp_path, "old")
    directory.write_config(to_toml(config))
    directory.write_summary(SUMMARY)
    directory.address.write_text("tcp://127.0.0.1:5570\n")
    resume(directory.path)
    assert f"{directory.path} is complete (3 steps): there is nothing to resume" in printed.getvalue()
    assert directory.read_summary() == SUMMARY

    def action(resumed: RunDirectory) -> None:
        assert load_config(resumed.config).run.steps == 9
        assert not resumed.address.exists(), "the port of the old broker may be in use"
        resumed.write_summary(SUMMARY)

    supervised(action)
    resume(directory.path, 9)
    assert "finished" in printed.getvalue()


@pytest.mark.parametrize(("owns_process", "expected"), [(False, 0o002), (True, 0o077)])
def test_the_umask_of_a_host_stays_and_the_run_is_its_owners_alone_all_the_same(
    config: Config, supervised: Install, printed: StringIO, tmp_path: Path, owns_process: bool, expected: int
) -> None:
    """A notebook goes on to write files of its own."""
    supervised(lambda directory: directory.write_summary(SUMMARY))
    before = os.umask(0o002)
    try:
        run(config, owns_process=owns_process)
        assert os.umask(before) == expected
    finally:
        os.umask(before)
    run_directory = tmp_path / "runs" / "tiny"
    assert run_directory.stat().st_mode & 0o777 == 0o700
    open_to_others = [path.name for path in run_directory.rglob("*") if path.stat().st_mode & 0o077]
    assert (run_directory / "logs" / "screen.log").is_file()
    assert open_to_others == []


def test_a_run_that_was_open_is_closed_when_it_is_resumed_and_its_owner_is_told(
    config: Config, supervised: Install, printed: StringIO, tmp_path: Path
) -> None:
    directory = RunDirectory.create(tmp_path, "old")
    directory.write_config(to_toml(config))
    directory.path.chmod(0o755)
    supervised(lambda directory: directory.write_summary(SUMMARY))
    resume(directory.path)
    assert f"other users could enter {directory.path} (mode 0755): it is 0700 from now on" in printed.getvalue()
    assert directory.path.stat().st_mode & 0o777 == 0o700


def test_a_configuration_that_others_could_have_written_is_not_resumed(config: Config, tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "old")
    directory.write_config(to_toml(config))
    directory.config.chmod(0o666)
    with pytest.raises(ConfigError, match=r"other users can write the configuration .* chmod 600"):
        resume(directory.path)


def test_a_run_file_is_run_by_its_path(tmp_path: Path, printed: StringIO, supervised: Install) -> None:
    def finish(directory: RunDirectory) -> None:
        directory.write_summary(SUMMARY)

    supervised(finish)
    file = tmp_path / "sums.toml"
    file.write_text(f'[run]\ndir = "{tmp_path}/runs"\n[model]\npath = "m"\n[data]\ntrain = "t"\n')
    run(file, "run.steps=3", "trainer.warmup_steps=0")
    assert load_config(tmp_path / "runs" / "sums" / "config.toml").run.steps == 3
    assert "run directory" in (tmp_path / "runs" / "sums" / "logs" / "screen.log").read_text()
    with pytest.raises(ConfigError, match=r"overrides such as 'run\.steps=3' are for the path of a run file"):
        run(load_config(file), "run.steps=3")


def test_ctrl_c_before_the_processes_start_is_an_interruption(
    config: Config, printed: StringIO, supervised: Install
) -> None:
    def interrupted(_: RunDirectory) -> None:
        raise KeyboardInterrupt

    supervised(interrupted)
    with pytest.raises(RunInterrupted):
        run(config)
    summary = RunDirectory(Path(config.run.dir) / "tiny").read_summary()
    assert summary
    assert summary.status == "interrupted"
