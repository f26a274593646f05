"""Commands that read a run: which run is missing, and reports."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest

from asyncrl.cli.recorded.commands import COMMANDS
from asyncrl.observe.run_directory import RunDirectory
from tests.cli.invoke import asyncrl


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_run_that_does_not_exist_is_named(command: click.Command, tmp_path: Path) -> None:
    others = ["tensorboard"] if command.name == "track" else []
    found = asyncrl(command.name, tmp_path / "none", *others)
    assert found.exit_code == 78
    assert f"{tmp_path / 'none'}" in found.output
    assert len(found.output.splitlines()) == 1


def a_run(folder: Path, name: str) -> RunDirectory:
    directory = RunDirectory.create(folder, name)
    directory.config.write_text('[model]\npath = "m"\n[data]\ntrain = "t"\n')
    directory.append_event("run.started", seed=0)
    directory.append_metrics({"step": 0, "time_s": 1.0, "reward": 0.5, "tokens": 10})
    return directory


def test_report_writes_one_page_beside_the_run(tmp_path):
    run = a_run(tmp_path, "one")
    result = asyncrl("report", run.path)
    assert (result.exit_code, result.output) == (0, f"{run.report}\n")
    assert run.report.read_text().startswith("<!")


def test_report_of_several_runs_is_written_to_the_given_file(tmp_path):
    runs = [a_run(tmp_path, name).path for name in ("one", "two")]
    result = asyncrl("report", *runs, "-o", tmp_path / "both.html")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "both.html").read_text()
    assert "one" in page
    assert "two" in page


def test_a_report_goes_into_a_fifo_and_leaves_it_one(tmp_path):
    run, fifo = a_run(tmp_path, "one"), tmp_path / "fifo"
    os.mkfifo(fifo)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(fifo.read_text)
        result = asyncrl("report", run.path, "-o", fifo)
        assert result.exit_code == 0, result.output
        assert read.result(timeout=30).startswith("<!")
    assert fifo.is_fifo()


def test_a_report_about_no_run_is_refused(tmp_path):
    result = asyncrl("report", tmp_path / "nowhere")
    assert result.exit_code not in (0, 1)
    assert len(result.stderr.splitlines()) == 1
