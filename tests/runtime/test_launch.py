"""The dashboard beside a run, and the newest run of a file."""

import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from msgspec.structs import replace

from asyncrl.config.config import Config
from asyncrl.config.run_file import to_toml, with_absolute_paths
from asyncrl.errors import ConfigError
from asyncrl.records.run_directory import RunDirectory
from asyncrl.runtime.checks import devices_of, resolved
from asyncrl.runtime.launch import begun, dashboard_beside
from tests.broker.driver import a_config

# ── beside ────────────────────────────────────────────────────────────────────────────────────────


def test_the_dashboard_is_there_while_the_run_is(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    directory = RunDirectory.create(tmp_path, "a")
    said: list[str] = []
    with dashboard_beside(directory, said.append):
        url = said[0].removeprefix("dashboard ")
        with urllib.request.urlopen(f"{url}api/runs", timeout=10) as answer:
            assert b'"name":"a"' in answer.read()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=2)


def test_a_dashboard_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDirectory.create(tmp_path, "a")
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "asyncrl: the port is taken" >&2\nexit 78\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ConfigError, match="the port is taken"), dashboard_beside(directory, print):
        pass


# ── going on with the newest run of a file ────────────────────────────────────────────────


@pytest.fixture
def started(tmp_path: Path) -> Config:
    here: dict[str, object] = {"device": "cpu"}
    config = a_config(run={"dir": str(tmp_path / "runs"), "steps": 9}, rollout=here, trainer=here)
    for name in ("mine", "mine", "mine", "other"):
        directory = RunDirectory.create(Path(config.run.dir), name)
        directory.write_config(to_toml(with_absolute_paths(resolved(config, devices_of(config)[1]), Path.cwd())))
    return config


def test_the_newest_run_of_a_name_goes_on(started: Config) -> None:
    runs = Path(started.run.dir)
    assert begun(started, "mine") == runs / "mine-3"
    assert begun(started, "other") == runs / "other"
    assert begun(started, "new") is None


def test_a_run_with_other_settings_does_not_go_on_with_these(started: Config) -> None:
    with pytest.raises(ConfigError, match=r"mine-3 was begun with run.steps = 9, and here it is 10; asyncrl resume"):
        begun(replace(started, run=replace(started.run, steps=10)), "mine")


def test_the_tenth_run_is_newer_than_the_ninth(tmp_path: Path) -> None:
    for _ in range(10):
        newest = RunDirectory.create(tmp_path, "mine")
    assert RunDirectory.newest(tmp_path, "mine") is not None
    assert str(RunDirectory.newest(tmp_path, "mine")) == str(newest)
    assert newest.path.name == "mine-10"
