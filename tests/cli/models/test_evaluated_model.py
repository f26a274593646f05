"""`asyncrl eval` finds the settings of the run that a model is in."""

from pathlib import Path

import pytest

from asyncrl.cli.models import evaluated_model
from asyncrl.cli.models.evaluated_model import model_and_run_file
from asyncrl.errors import ConfigError
from asyncrl.observe.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path, "run")
    directory.config.touch()
    return directory


def test_a_checkpoint_has_the_run_file_of_its_run(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    step = run.checkpoints / "step_000004"
    step.mkdir()
    assert model_and_run_file(str(step)) == (str(step), run.config)
    monkeypatch.chdir(step)
    assert model_and_run_file(".") == (".", run.config)


def test_a_run_is_its_newest_checkpoint(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = run.checkpoints / "step_000004"
    monkeypatch.setattr(
        evaluated_model, "find_checkpoint", lambda *asked: asked == (run.checkpoints, None) and [newest]
    )
    assert model_and_run_file(str(run.path)) == (str(newest), run.config)


def test_a_run_without_a_checkpoint_is_refused(run: RunDirectory) -> None:
    with pytest.raises(ConfigError, match="there is no intact checkpoint in "):
        model_and_run_file(str(run.path))


def test_any_other_model_is_in_no_run(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "step_000004"
    folder.mkdir(parents=True)
    for model in (str(folder), "org/name", "hf://org/name@main"):
        assert model_and_run_file(model) == (model, None)
