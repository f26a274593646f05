"""A run in a session of its own: what the command that started it waits for, and says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.cli.launch import VARIABLE, begin_apart, when_begun

BEGUN = """
import os, sys
from pathlib import Path
from asyncrl.cli.launch import when_begun
from asyncrl.records.run_directory import RunDirectory
print("checked", flush=True)
when_begun()(RunDirectory(Path(sys.argv[1])))
print("a line of the screen, which its console keeps", flush=True)
print("last words", file=sys.stderr, flush=True)
print(os.getsid(0) == os.getpid(), file=sys.stderr, flush=True)
"""


def test_a_detached_run_says_where_it_is_and_then_writes_to_the_log_of_its_screen(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    starter = (
        f"import sys; from asyncrl.cli.launch import begin_apart; sys.exit(begin_apart({[sys.executable, '-c', BEGUN]}"
    )
    command = [sys.executable, "-c", f"{starter} + {[str(tmp_path)]}))"]
    started = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (started.returncode, started.stderr) == (0, "")
    checked, detached = started.stdout.splitlines()
    assert checked == "checked"
    assert detached.startswith("detached as process ")
    assert detached.endswith(f"; watch it: asyncrl attach {tmp_path}, end it: asyncrl stop {tmp_path}")
    assert (tmp_path / "logs" / "screen.log").read_text() in ("", "last words\n", "last words\nTrue\n")


def test_a_run_that_ends_before_it_begins_ends_the_command_with_its_code() -> None:
    assert begin_apart([sys.executable, "-c", "raise SystemExit(78)"]) == 78


def test_a_run_in_a_terminal_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert when_begun() is None
    monkeypatch.setenv(VARIABLE, "7")
    assert when_begun()
    assert VARIABLE not in os.environ
