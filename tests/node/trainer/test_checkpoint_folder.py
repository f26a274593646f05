"""Checkpoints are in the run directory where it is visible, and in this machine's state elsewhere."""

from contextlib import closing
from pathlib import Path

from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.messages.session import Welcome
from asyncrl.messages.spool import SpoolSet
from asyncrl.node.trainer.checkpoint_folder import checkpoint_folder


def folder(run_dir: Path, run_id: str, state: Path) -> Path:
    welcome = Welcome(1, str(run_dir), b"", SpoolSet(), 1.0, run_id)
    return checkpoint_folder(welcome, {"XDG_STATE_HOME": str(state)})


def test_the_run_directory_holds_them_if_its_ledger_is_that_of_the_run(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        assert folder(tmp_path, ledger.run_id, tmp_path) == tmp_path / "checkpoints"
        assert folder(tmp_path, "another", tmp_path) == tmp_path / "asyncrl/runs/another/checkpoints"


def test_a_machine_without_the_run_directory_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert folder(tmp_path / "elsewhere", "r", tmp_path) == tmp_path / "asyncrl/runs/r/checkpoints"


def test_a_damaged_ledger_is_none_of_this_run(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_text("no ledger")
    assert folder(tmp_path, "r", tmp_path) == tmp_path / "asyncrl/runs/r/checkpoints"


def test_without_a_state_home_it_is_below_the_home(tmp_path: Path) -> None:
    welcome = Welcome(1, str(tmp_path), b"", SpoolSet(), 1.0, "r")
    assert checkpoint_folder(welcome, {"HOME": "/h"}) == Path("/h/.local/state/asyncrl/runs/r/checkpoints")


def test_a_run_without_an_identity_has_them_in_its_directory(tmp_path: Path) -> None:
    assert folder(tmp_path, "", tmp_path) == tmp_path / "checkpoints"
