"""Whatever a run file that we ship says of evaluations and checkpoints, a bench can change when evaluations happen."""

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(
    path for folder in ("conf", "conf/recipes", "bench") for path in (ROOT / folder).glob("*.toml") if path.is_file()
)


@pytest.fixture
def run_files(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("run_files")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
@pytest.mark.parametrize("evaluations", ["NEVER", "AT_END", "every 50 versions"])
def test_a_shipped_run_file_can_be_evaluated_at_other_times(path: Path, evaluations: str, run_files: Any) -> None:
    wanted = getattr(run_files, evaluations, {"every_versions": 50})

    config = run_files.changed(path, [], wanted)

    assert {key: getattr(config.evaluation, key) for key in wanted} == wanted
    assert not config.checkpoint.keep_best


def test_without_a_change_the_run_file_is_as_shipped(run_files: Any) -> None:
    config = run_files.changed(run_files.QUICKSTART, [], None)

    assert config.checkpoint.keep_best
    assert config.evaluation.every_versions == 10


def test_settings_of_the_command_line_count_last(run_files: Any) -> None:
    settings = ["evaluation.every_versions=2", "evaluation.every_versions=3"]

    assert run_files.changed(run_files.QUICKSTART, settings, run_files.NEVER).evaluation.every_versions == 3
