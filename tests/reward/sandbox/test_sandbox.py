"""Programs that must not get out, and what is said of them."""

import os
from pathlib import Path

import pytest

from asyncrl.errors import VerifierError
from asyncrl.reward.sandbox.sandbox import NOBODY, Limits, Ran, Sandbox

FOUND = Sandbox.find()
WALLED = Sandbox(walls=True)
"""As whoever we are, who may write into folders of ours."""
needs_sandbox = pytest.mark.skipif(FOUND is None, reason="no program can be run here")
needs_walls = pytest.mark.skipif(FOUND is None or not FOUND.walls, reason="the kernel gives no namespaces here")


def ran(program: str, stdin: str = "", **limits: int | float) -> Ran:
    assert FOUND is not None
    return FOUND.run(program, stdin, Limits(**limits))  # type: ignore[arg-type]


@needs_sandbox
def test_a_program_reads_its_input_and_its_output_is_kept() -> None:
    assert ran("print(int(input()) + 1)", "41") == Ran(output="42\n", succeeded=True)
    assert ran("print(1)\nraise SystemExit(3)") == Ran(output="1\n", succeeded=False)


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
def test_what_goes_beyond_its_limits_has_not_succeeded(program: str) -> None:
    assert not ran(program, cpu_s=1, wall_s=3.0).succeeded


@needs_sandbox
def test_one_that_waits_is_ended_by_the_clock() -> None:
    assert not ran("import time\nprint('begun', flush=True)\ntime.sleep(3600)", wall_s=1.0).succeeded


@needs_sandbox
def test_it_sees_no_variable_of_ours_and_its_folder_is_empty_and_goes_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("API_TOKEN", "secret")

    seen = ran("import os\nprint(sorted(os.environ))\nprint(os.listdir())\nprint(os.getcwd())").output.splitlines()

    assert "API_TOKEN" not in seen[0]
    assert seen[1] == "['program.py']"
    assert not Path(seen[2]).exists()


@needs_sandbox
def test_descriptors_of_ours_stay_with_us() -> None:
    """Nor can it write where we read whether it was begun."""
    said = ran(
        "import os\n"
        "for number in range(3, 64):\n"
        "    try: os.write(number, b'x')\n"
        "    except OSError: pass\n"
        "    else: print(number)\n"
    )

    assert said == Ran(output="", succeeded=True)


@needs_walls
def test_within_walls_there_is_no_network() -> None:
    said = ran("import socket\ntry: socket.create_connection(('127.0.0.1', 9))\nexcept OSError as e: print(e.errno)")

    assert said.output.strip() in ("101", "99")  # network unreachable: loopback itself is down


@needs_walls
def test_within_walls_what_it_started_dies_with_it(tmp_path: Path) -> None:
    """Also what has a session of its own."""
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    program = (
        f"import os, time\nhold = open({str(fifo)!r}, 'wb', buffering=0)\n"
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(3600)\nprint('left')"
    )

    assert WALLED.run(program, "", Limits()).output == "left\n"

    os.set_blocking(reader, True)
    with os.fdopen(reader, "rb") as still_open:
        assert still_open.read() == b""  # ends when nobody can write any more


@needs_walls
def test_within_walls_nobody_outlives_the_clock_who_makes_himself_deaf_to_it(tmp_path: Path) -> None:
    """A session of its own, and no wish to die with its parent."""
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    program = (
        f"import ctypes, os, time\nhold = open({str(fifo)!r}, 'wb', buffering=0)\nos.setsid()\n"
        "ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\nhold.write(b'deaf')\ntime.sleep(3600)"
    )

    assert not WALLED.run(program, "", Limits(wall_s=3.0)).succeeded

    os.set_blocking(reader, True)
    with os.fdopen(reader, "rb") as still_open:
        assert still_open.read() == b"deaf"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_of_roots_the_program_is_nobody_where_nobody_may_run_the_interpreter() -> None:
    found = Sandbox.find("/usr/bin/python3")
    if found is None or not found.user_id:
        pytest.skip("nobody may not run /usr/bin/python3 here")

    said = found.run("import os\nprint(os.getuid(), os.getgid(), os.getgroups())\nopen('x', 'w')", "", Limits())
    bomb = found.run("import os\nwhile True: os.fork()", "", Limits(cpu_s=1, wall_s=1.0, processes=8))

    assert said == Ran(output=f"{NOBODY} {NOBODY} []\n", succeeded=True)
    assert not bomb.succeeded


@needs_sandbox
def test_a_sandbox_that_cannot_begin_is_an_error_and_not_a_failed_program() -> None:
    with pytest.raises(VerifierError, match="cannot start") as caught:
        Sandbox(walls=False, python="/nonexistent/python").run("print(1)", "", Limits())

    assert caught.value.retryable
