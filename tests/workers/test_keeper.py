"""A keeper with a worker that is any program."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.workers import folders
from asyncrl.workers.folders import Process
from asyncrl.workers.keeper import AT_ONCE_BYTES, MAX_THREADS, GuardLimits

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs subreapers and /proc"),
    pytest.mark.timeout(30),
]
MIB = 1 << 20
DAEMON = """
import os, time
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(3600)
os.wait()
"""


class Kept:
    """A keeper, the pipes to its worker, and what it reports."""

    def __init__(self, program: str, *, processes: int = 50, memory_bytes: int = 256 * MIB) -> None:
        self._reader, report = os.pipe()
        numbers = (report, AT_ONCE_BYTES, "reward", memory_bytes, processes, MIB)
        keeper = [sys.executable, "-m", "asyncrl.workers.keeper", *map(str, numbers), "", "", ""]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*keeper, sys.executable, "-u", "-c", program],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            pass_fds=(report,),
            start_new_session=True,
        )
        os.close(report)

    def line(self) -> bytes:
        """Read the next line on the worker's stdout."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ended(self) -> tuple[str, bytes]:
        """Wait for the keeper: its report, and what was printed to stderr; nothing is left below it."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        assert self.process.stdin is not None
        printed = self.process.stderr.read()
        assert self.process.stdout.read() == b""  # whoever had it open has ended
        assert self.process.wait() == 0
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()
        with os.fdopen(self._reader, "rb") as report:
            return report.read().decode(), printed


def test_the_end_of_a_worker_is_reported_and_its_last_words_are_printed() -> None:
    assert Kept("import sys; sys.exit('bye')").ended() == ("it exited with code 1", b"bye\n")
    assert Kept("import os; os.kill(os.getpid(), 9)").ended() == ("it was killed by signal 9 (Killed)", b"")


def test_daemons_end_with_their_worker() -> None:
    assert Kept(DAEMON * 3 + "os._exit(5)").ended()[0] == "it exited with code 5"


def test_daemons_end_while_their_worker_lives() -> None:
    kept = Kept(DAEMON + "print('begun')\ntime.sleep(3600)")
    kept.line()
    while len(folders.below(kept.process.pid)) > 1:
        pass

    os.kill(kept.process.pid, signal.SIGTERM)

    assert b"1 processes that the function left behind were killed" in kept.ended()[1]


def test_a_worker_ends_when_its_stdin_is_closed_even_if_it_never_reads_it() -> None:
    kept = Kept(DAEMON + "print('begun')\ntime.sleep(3600)")
    kept.line()
    assert kept.process.stdin is not None
    kept.process.stdin.close()

    assert kept.ended()[0] == ""


def test_a_worker_and_its_daemons_end_with_the_process_that_started_the_keeper(tmp_path: Path) -> None:
    program = DAEMON + "print('begun', flush=True)\ntime.sleep(3600)"
    starter = (
        "import os, subprocess, sys, time\n"
        "keeper = [sys.executable, '-m', 'asyncrl.workers.keeper']\n"
        "report = os.pipe()[1]\n"
        "command = [*keeper, str(report), '65536', 'reward', '99999999999', '50', '1', '', '', '']\n"
        f"subprocess.Popen([*command, sys.executable, '-c', {program!r}], stdin=subprocess.PIPE, pass_fds=(report,))\n"
        "time.sleep(3600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()

        process.kill()

        assert process.stdout.read() == b""  # all below it had this open


def test_a_worker_with_too_much_memory_is_ended() -> None:
    report, _ = Kept("import time\nx = b'x' * (300 << 20)\ntime.sleep(3600)").ended()

    assert "bytes of memory, more than reward.memory_bytes = 268,435,456, and was killed" in report


def test_a_worker_with_too_many_processes_is_ended() -> None:
    report, _ = Kept("import os, time\nfor _ in range(60): os.fork() or time.sleep(3600)\ntime.sleep(3600)").ended()

    assert "it had 61 processes, more than reward.processes = 50, and was killed" in report


def test_threads_and_memory_of_all_processes_count() -> None:
    limits = GuardLimits(section="reward", memory_bytes=100, processes=2, file_bytes=1)

    assert limits.problem_of([Process(1 << 30, 1, 1, 50), Process(2 << 30, 1, 1, 50)]) == ""
    assert "it held 101 bytes" in limits.problem_of([Process(1 << 30, 1, 1, 50), Process(2 << 30, 1, 1, 51)])
    assert "it had 4097 threads" in limits.problem_of([Process(1, 0, MAX_THREADS, 1), Process(2, 0, 1, 1)])
    assert "it had 3 processes" in limits.problem_of([Process(1, 0, 1, 1)] * 3)


def test_gigabytes_of_output_are_cut_and_the_line_says_how_many() -> None:
    report, printed = Kept("import os\nfor _ in range(500): os.write(2, b'x' * (1 << 20))").ended()

    assert report == "it exited with code 0"
    assert len(printed) < 2 * AT_ONCE_BYTES
    assert b"bytes of output were cut" in printed


def test_limits_of_the_worker_are_set() -> None:
    program = (
        "import resource, sys\n"
        "limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE)]\n"
        "sys.exit(f'{limits} {open(\"/proc/self/oom_score_adj\").read()}')"
    )

    assert Kept(program).ended()[1] == b"[0, 1048576] 1000\n\n"
