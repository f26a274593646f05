"""One role as a process: exit codes, signals, and one sentence on standard error."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PREAMBLE = """
import asyncio
import sys

from asyncrl import errors
from asyncrl.node.process import run_process

def say(word):
    print(word, flush=True)

"""


@pytest.fixture
def start() -> Iterator[object]:
    """Start a process whose job is the given source."""
    processes: list[subprocess.Popen[str]] = []

    def start(job: str) -> subprocess.Popen[str]:
        source = f"{PREAMBLE}async def job(stopping):\n{job}\n\nsys.exit(run_process(job, name='rollout-7'))"
        command = [sys.executable, "-c", source]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_a_job_that_ends_exits_with_0(start):
    process = start("    say('done')")
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (0, "done\n", "")


@pytest.mark.parametrize(
    ("error", "code"),
    [("ConfigError", 78), ("LinkRefused", 78), ("LinkReset", 69), ("EngineError", 70), ("RunFailed", 1)],
)
def test_an_error_of_ours_is_one_sentence_and_its_exit_code(start, error, code):
    process = start(f"    raise errors.{error}('this and that')")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    logged, printed = errors.splitlines()
    assert printed == "asyncrl: this and that"
    assert '"event": "node.failed"' in logged
    assert '"node": "rollout-7"' in logged


def test_a_bug_shows_its_traceback(start):
    process = start("    raise KeyError('a bug')")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 70, "not 1, with which a failed run ends: a service manager restarts a bug"
    assert "Traceback" in errors
    assert "KeyError: 'a bug'" in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains(start, number):
    process = start("    say('serving')\n    await stopping.wait()\n    say('drained')")
    assert process.stdout.readline() == "serving\n"
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, output) == (0, "drained\n")


def test_a_second_signal_exits_at_once(start):
    process = start(
        "    say('serving')\n    await stopping.wait()\n    say('draining')\n    await asyncio.Event().wait()"
    )
    assert process.stdout.readline() == "serving\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "draining\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 143


def test_a_log_that_cannot_be_written_changes_neither_the_work_nor_the_exit_code():
    """/dev/full takes nothing, as a full disk does."""
    job = "import structlog\n    structlog.get_logger().info('hello')\n    raise errors.RunFailed('this and that')"
    source = f"{PREAMBLE}async def job(stopping):\n    {job}\n\nsys.exit(run_process(job, name='rollout-7'))"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", source], stderr=full, timeout=30, check=False)
    assert done.returncode == 1, "of RunFailed, and not of the log"
