"""The dashboard of a run that is being run: a process of its own, so that nobody's look costs the run anything."""

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from asyncrl.actor.supervise import dies_with, why
from asyncrl.errors import ConfigError
from asyncrl.observe.run_directory import RunDirectory

START_S = 20.0
"""Seconds for it to print its address."""
STOP_S = 5.0
NICENESS = 10
"""The run goes first."""


@contextmanager
def dashboard_beside(directory: RunDirectory, say: Callable[[str], None]) -> Iterator[None]:
    """
    Serve the run's dashboard until the block ends, and say its address first.

    Raises:
        ConfigError: It did not start; the message is its own.
    """
    command = [sys.executable, "-m", "asyncrl", "dashboard", str(directory.path)]
    log = directory.logs / "dashboard.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["nice", "-n", str(NICENESS), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the run, which ends this process in order
            preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509  takes no lock between fork and exec
        )
    try:
        assert process.stdout is not None
        if not (url := _first_line(process.stdout)):
            _end(process)
            raise ConfigError(why(log.read_bytes()) or f"no dashboard within {START_S:g} s")
        say(f"dashboard {url}")
        yield
    finally:
        _end(process)
        if process.stdout is not None:
            process.stdout.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process, and kill it if it does not end; nothing if it has ended."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _first_line(output: IO[bytes]) -> str:
    """The first line that a process prints; empty if it ends, or takes too long."""
    ready, _, _ = select.select([output], [], [], START_S)
    return output.readline().decode().strip() if ready else ""
