"""The jail as a process of its own: limits, environment and exit code of the program it becomes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.workers import jail

LIMITS = """
import resource
for kind in ("CPU", "AS", "FSIZE", "NPROC", "NOFILE", "CORE"):
    print(kind, *resource.getrlimit(getattr(resource, f"RLIMIT_{kind}")))
"""


Done = subprocess.CompletedProcess[str]


def jailed(folder: Path, program: str, *, user_id: int = 0) -> tuple[Done, bytes]:
    """The finished program, and the bytes on READY_FD."""
    (folder / "program.py").write_text(program)
    reader, ready = os.pipe()
    numbers = (user_id, 4, 1 << 30, 1 << 20, 64, ready)
    command = [sys.executable, "-I", "-S", jail.__file__, str(folder), *map(str, numbers)]
    try:
        done = subprocess.run(command, pass_fds=(ready,), capture_output=True, text=True, check=False, timeout=60)
    finally:
        os.close(ready)
    with os.fdopen(reader, "rb") as messages:
        return done, messages.read()


@pytest.mark.skipif(sys.platform != "linux", reason="macOS refuses a limit on the address space")
def test_the_program_runs_under_the_limits_given(tmp_path: Path) -> None:
    done, message = jailed(tmp_path, LIMITS)

    limits = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert message == jail.READY
    assert limits["CPU"] == ["4", "4"]
    assert limits["AS"] == [str(1 << 30)] * 2
    assert limits["FSIZE"] == [str(1 << 20)] * 2
    assert limits["NOFILE"] == ["64", "64"]
    assert limits["CORE"] == ["0", "0"]
    assert int(limits["NPROC"][0]) <= 64


def test_the_program_gets_its_folder_and_a_new_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "secret")
    done, _ = jailed(tmp_path, "import os\nprint(os.getcwd())\nprint(*sorted(os.environ))")

    folder, names = done.stdout.splitlines()
    assert Path(folder) == tmp_path.resolve()
    assert {"HOME", "PATH", "OMP_NUM_THREADS"} <= set(names.split())
    assert "API_TOKEN" not in names


def test_the_exit_code_is_the_programs_own(tmp_path: Path) -> None:
    done, message = jailed(tmp_path, "raise SystemExit(3)")

    assert (done.returncode, message) == (3, jail.READY)


def test_a_jail_that_fails_before_the_program_does_not_report_ready(tmp_path: Path) -> None:
    done, message = jailed(tmp_path, "print(1)", user_id=-5)

    assert (done.returncode, done.stdout, message) == (1, "", b"")


@pytest.mark.parametrize(("status", "code"), [(0, 0), (7 << 8, 7), (9, 1)])
def test_a_program_killed_by_a_signal_has_exit_code_1(monkeypatch: pytest.MonkeyPatch, status: int, code: int) -> None:
    """Orphans that end meanwhile are ignored."""
    ended = iter([(99, 0), (42, status)])
    monkeypatch.setattr(os, "wait", lambda: next(ended))

    assert jail._exit_code(42) == code
