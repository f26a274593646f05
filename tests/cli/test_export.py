"""`asyncrl export` refuses what it cannot write before it reads gigabytes. The command itself is in test_main.py."""

from pathlib import Path

import pytest

from asyncrl.cli.export import export_run
from asyncrl.errors import ConfigError


def test_an_existing_directory_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists and is never overwritten"):
        export_run(tmp_path / "run", tmp_path / "out")


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none"):
        export_run(tmp_path / "none", tmp_path / "out")
