"""The sandbox: its limits, its isolation, and the results it reports."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from asyncrl.errors import SandboxError
from asyncrl.workers.sandbox import NOBODY, ProgramResult, Sandbox, SandboxLimits

FOUND = Sandbox.find()
ISOLATED = Sandbox(has_namespaces=True)
"""Programs run as the current user, who can write into the test's folders."""
needs_sandbox = pytest.mark.skipif(FOUND is None, reason="no program can be run on this machine")
needs_namespaces = pytest.mark.skipif(
    FOUND is None or not FOUND.has_namespaces, reason="the kernel gives no namespaces here"
)


def ran(program: str, stdin: str = "", **limits: int | float) -> ProgramResult:
    assert FOUND is not None
    return FOUND.run(program, stdin, SandboxLimits(**limits))  # type: ignore[arg-type]


@needs_sandbox
def test_a_program_reads_its_input_and_its_output_is_kept() -> None:
    assert ran("print(int(input()) + 1)", "41") == ProgramResult(output="42\n", succeeded=True)
    assert ran("print(1)\nraise SystemExit(3)") == ProgramResult(output="1\n", succeeded=False)


@pytest.mark.slow("waits for limits of time that are those of a real run")
@needs_sandbox
@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "x = 'a' * (2 << 30)",
        "print('a' * (3 << 20))",
        "import os; os.abort()",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.kill(1, 9)\nimport time; time.sleep(3600)",
        "def (",
        "\x00",
        "\udcff",
        "import sys; sys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
        "open('/etc/passwd', 'r+')" if FOUND and FOUND.user_id else "raise SystemExit(1)",
    ],
)
def test_a_program_that_exceeds_its_limits_does_not_succeed(program: str) -> None:
    assert not ran(program, cpu_s=1, wall_s=3.0).succeeded


@needs_sandbox
def test_a_program_is_found_whatever_the_umask() -> None:
    """Nodes keep what they write from other users, and the program may run as one."""
    before = os.umask(0o077)
    try:
        assert ran("print(1)").output == "1\n"
    finally:
        os.umask(before)


@needs_sandbox
def test_a_program_that_waits_is_killed_after_its_wall_time() -> None:
    assert not ran("import time\nprint('begun', flush=True)\ntime.sleep(3600)", wall_s=1.0).succeeded


@needs_sandbox
def test_a_program_sees_no_environment_of_ours_and_an_empty_folder_that_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("API_TOKEN", "secret")

    seen = ran("import os\nprint(sorted(os.environ))\nprint(os.listdir())\nprint(os.getcwd())").output.splitlines()

    assert "API_TOKEN" not in seen[0]
    assert seen[1] == "['program.py']"
    assert not Path(seen[2]).exists()


@needs_sandbox
def test_a_program_inherits_no_file_descriptors() -> None:
    """It cannot write to the pipe that reports its start either."""
    result = ran(
        "import os\n"
        "for number in range(3, 64):\n"
        "    try: os.write(number, b'x')\n"
        "    except OSError: pass\n"
        "    else: print(number)\n"
    )

    assert result == ProgramResult(output="", succeeded=True)


@needs_namespaces
def test_in_namespaces_there_is_no_network() -> None:
    result = ran("import socket\ntry: socket.create_connection(('127.0.0.1', 9))\nexcept OSError as e: print(e.errno)")

    assert result.output.strip() in ("101", "99")  # network unreachable: loopback itself is down


@needs_namespaces
def test_in_namespaces_every_process_the_program_started_dies_with_it(tmp_path: Path) -> None:
    """Even a process in another session."""
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    program = (
        f"import os, time\nhold = open({str(fifo)!r}, 'wb', buffering=0)\n"
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(3600)\nprint('left')"
    )

    assert ISOLATED.run(program, "", SandboxLimits()).output == "left\n"

    os.set_blocking(reader, True)
    with os.fdopen(reader, "rb") as still_open:
        assert still_open.read() == b""  # ends when nobody can write any more


@pytest.mark.slow("waits for a real limit")
@needs_namespaces
def test_in_namespaces_a_program_that_ignores_its_parents_death_is_killed_in_time(tmp_path: Path) -> None:
    """It has a session of its own, and has switched off the signal sent when its parent dies."""
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    program = (
        f"import ctypes, os, time\nhold = open({str(fifo)!r}, 'wb', buffering=0)\nos.setsid()\n"
        "ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\nhold.write(b'deaf')\ntime.sleep(3600)"
    )

    assert not ISOLATED.run(program, "", SandboxLimits(wall_s=3.0)).succeeded

    os.set_blocking(reader, True)
    with os.fdopen(reader, "rb") as still_open:
        assert still_open.read() == b"deaf"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_under_root_the_program_runs_as_nobody_if_nobody_may_run_the_interpreter() -> None:
    found = Sandbox.find("/usr/bin/python3")
    if found is None or not found.user_id:
        pytest.skip("nobody may not run /usr/bin/python3 here")

    result = found.run(
        "import os\nprint(os.getuid(), os.getgid(), os.getgroups())\nopen('x', 'w')", "", SandboxLimits()
    )
    bomb = found.run("import os\nwhile True: os.fork()", "", SandboxLimits(cpu_s=1, wall_s=1.0, processes=8))

    assert result == ProgramResult(output=f"{NOBODY} {NOBODY} []\n", succeeded=True)
    assert not bomb.succeeded


@needs_sandbox
def test_a_sandbox_that_cannot_start_is_an_error_and_not_a_failed_program() -> None:
    with pytest.raises(SandboxError, match="cannot start"):
        Sandbox(has_namespaces=False, python="/nonexistent/python").run("print(1)", "", SandboxLimits())


BWRAP = f"""#!{sys.executable} -IS
# bwrap as far as its arguments go: refuses all that differ, and runs the command without walls
import os, sys
arguments = sys.argv[1:]
walls, command = arguments[:arguments.index("--")], arguments[arguments.index("--") + 1:]
root = "--cap-add CAP_SETUID --cap-add CAP_SETGID ".split() if {os.geteuid() == 0} else []
expected = (
    "--die-with-parent --new-session --unshare-ipc --unshare-net --unshare-pid --unshare-uts "
    "--ro-bind / / --dev /dev --proc /proc"
).split()
jail, folder = command[3:5]
empty = [part for place in dict.fromkeys(["/tmp", os.environ["TEMPORARY"]]) for part in ("--tmpfs", place)]
files = [*empty, "--ro-bind", jail, jail, "--bind", folder, folder]
if walls not in (expected + root + files, expected + files):
    sys.exit(f"bwrap: unexpected {{walls}}")
open(os.environ["USED"], "w").close()
os.execvp(command[0], command)
"""


def install_bwrap(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Put a ``bwrap`` into the search path; return the file that it makes when it is used well."""
    (folder / "bwrap").write_text(script)
    (folder / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("TEMPORARY", tempfile.gettempdir())
    monkeypatch.setenv("USED", str(folder / "used"))
    return folder / "used"


@needs_sandbox
def test_bubblewrap_is_preferred_where_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = install_bwrap(tmp_path, monkeypatch, BWRAP)

    found = Sandbox.find()

    assert found is not None
    assert found.has_bubblewrap
    assert found.has_namespaces
    used.unlink()
    assert found.run("print(input())", "through", SandboxLimits()).output == "through\n"
    assert used.exists()


@needs_sandbox
def test_a_bubblewrap_that_does_not_work_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_bwrap(
        tmp_path, monkeypatch, "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    )

    assert Sandbox.find() == FOUND
