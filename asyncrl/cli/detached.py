"""
`asyncrl run --detach`: a run in a session of its own, which no terminal ends.

    asyncrl run FILE --detach ─▶ asyncrl run FILE, in a new session ─ checks, run directory ─▶ "detached as process 71"
             └── waits, and ends with its code if it ends before that ◀── pipe ──────────────────────┘

Until the run begins it prints to the same terminal, so that a mistake is told as by `asyncrl run`.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence

import click

from asyncrl.records.run_directory import RunDirectory
from asyncrl.terminal import command_line, echo

VARIABLE = "ASYNCRL_DETACHED"
"""Descriptor of the pipe on which the detached process says that its run has begun."""
BEGAN = b"began"

detach_option = click.option("--detach", is_flag=True, help="Let the run go on by itself; asyncrl attach shows it.")


def detach(command: Sequence[str]) -> int:
    """
    Start a command that calls `let_go` in a session of its own; returns 0 once it has, or else its exit code.

    Ctrl-C before that ends it.
    """
    reader, writer = os.pipe()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=[writer],
        env={**os.environ, VARIABLE: str(writer)},
    )
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        try:
            return 0 if pipe.read() == BEGAN else process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise


def again() -> list[str]:
    """This command without ``--detach``."""
    return [sys.executable, "-m", "asyncrl", *(word for word in sys.argv[1:] if word != "--detach")]


def when_begun() -> Callable[[RunDirectory], None] | None:
    """Function for a run to call once it has begun, which leaves the terminal; None if this process stays there."""
    writer = os.environ.pop(VARIABLE, "")
    return (lambda directory: let_go(directory, int(writer))) if writer else None


def let_go(directory: RunDirectory, writer: int) -> None:
    """Say where the run is, and leave standard output and error to the log of its screen."""
    path = directory.path
    echo(
        f"detached as process {os.getpid()}; watch it: {command_line('asyncrl', 'attach', path)}, end it: "
        f"{command_line('asyncrl', 'stop', path)}"
    )
    sys.stdout.flush()
    with directory.screen.open("ab") as log, open(os.devnull, "wb") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), sys.stdout.fileno())  # the console writes its lines there itself
        os.dup2(log.fileno(), sys.stderr.fileno())
    os.write(writer, BEGAN)
    os.close(writer)
