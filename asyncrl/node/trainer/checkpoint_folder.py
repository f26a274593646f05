"""
Folder of a trainer's checkpoints: in the run directory where that is visible, otherwise in this machine's own state.

    RUN/checkpoints                                        this machine sees the run directory, and it is this run's
    $XDG_STATE_HOME/asyncrl/runs/RUN_ID/checkpoints        it does not
"""

import os
from collections.abc import Mapping
from pathlib import Path

from asyncrl.broker.ledger.reader import read_ledger_meta
from asyncrl.errors import LedgerError
from asyncrl.files.user_folders import user_folder
from asyncrl.messages.session import Welcome
from asyncrl.observe.run_directory import RunDirectory


def checkpoint_folder(welcome: Welcome, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder, which need not exist. A run without an identity has it in its run directory."""
    directory = RunDirectory(Path(welcome.run_dir))
    if not welcome.run_id or _holds(directory, welcome.run_id):
        return shared_folder(welcome)
    state = user_folder("state", environment) or Path("/.local/state")
    return state / "asyncrl" / "runs" / welcome.run_id / "checkpoints"


def shared_folder(welcome: Welcome) -> Path:
    """The folder in the run directory, on the broker's machine."""
    return RunDirectory(Path(welcome.run_dir)).checkpoints


def _holds(directory: RunDirectory, run_id: str) -> bool:
    """True if the ledger in a directory is that of a run."""
    try:
        return directory.ledger.is_file() and read_ledger_meta(directory.ledger).run_id == run_id
    except (LedgerError, OSError):  # Not readable here: a directory of the same path on another machine.
        return False
