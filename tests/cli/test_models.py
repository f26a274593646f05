"""`asyncrl eval`, `asyncrl sample` and `asyncrl export` refuse what cannot be before they load anything."""

import pytest
import structlog

from asyncrl.records.run_directory import RunDirectory
from tests.cli.invoke import asyncrl


@pytest.fixture(autouse=True)
def _restore_logging():
    """These commands configure logging to standard error, which is closed after the test."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def test_eval_refuses_a_directory_without_a_model(config, tmp_path):
    (tmp_path / "nothing").mkdir()
    result = asyncrl("eval", tmp_path / "nothing", "--config", config, "--data", tmp_path / "train.parquet")
    assert result.exit_code == 78
    assert (
        result.stderr
        == f"asyncrl: MODEL '{tmp_path}/nothing' is not a model directory (no config.json in it): give one, or make a "
        "toy model with `asyncrl toy step-sums DIR` or `asyncrl toy random DIR --text FILE`\n"
    )


def test_eval_refuses_rows_without_a_verifier_before_it_loads_anything(config, tmp_path):
    result = asyncrl("eval", tmp_path / "model", "--data", tmp_path / "train.parquet")
    assert result.exit_code == 78
    assert "no reward is for rows with data_source 'toy'" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param([], "there is no intact checkpoint in", id="no checkpoint"),
        pytest.param(["--step", "3"], "there is no checkpoint of step 3", id="not this one"),
        pytest.param(["--step", "best"], "there is no", id="none was measured"),
        pytest.param(
            ["--step", "last"], "--step 'last': expected a number of optimizer steps, or 'best'", id="no step"
        ),
    ],
)
def test_export_refuses_a_missing_checkpoint(tmp_path, options, message):
    run = RunDirectory.create(tmp_path, "toy")
    result = asyncrl("export", run.path, "-o", tmp_path / "out", *options)
    assert result.exit_code == 78
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_export_overwrites_nothing(tmp_path):
    run = RunDirectory.create(tmp_path, "toy")
    result = asyncrl("export", run.path, "-o", tmp_path)
    assert result.exit_code == 78
    assert "exists and is never overwritten" in result.stderr


def test_export_refuses_a_missing_run(tmp_path):
    assert asyncrl("export", tmp_path / "none", "-o", tmp_path / "out").exit_code == 78


def test_sample_refuses_a_directory_without_a_model_and_no_prompt(tmp_path):
    missing = asyncrl("sample", tmp_path / "nothing", "--prompt", "Why?")
    assert missing.exit_code == 78
    assert f"MODEL '{tmp_path}/nothing' is not a model directory" in missing.stderr
    assert asyncrl("sample", tmp_path / "nothing").exit_code == 2
    of_row = asyncrl("sample", tmp_path / "nothing", "--row", 1, "--system", "Be brief.")
    assert (of_row.exit_code, "a row has its own messages" in of_row.stderr) == (2, True)


def test_sample_refuses_a_run_without_a_checkpoint(tmp_path):
    run = RunDirectory.create(tmp_path, "toy")
    run.write_config("")
    result = asyncrl("sample", run.path, "--prompt", "Why?")
    assert result.exit_code == 78
    assert "there is no intact checkpoint in" in result.stderr
