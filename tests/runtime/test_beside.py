import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

from asyncrl.errors import ConfigError
from asyncrl.records.run_directory import RunDirectory
from asyncrl.runtime.launch import dashboard_beside


def test_the_dashboard_is_there_while_the_run_is(tmp_path: Path) -> None:
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
