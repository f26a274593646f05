"""Parts of all commands: the option ``--json``, the argument RUN, and errors as one line and an exit code."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import click

from asyncrl.errors import AsyncrlError, ConfigError, RunInterrupted
from asyncrl.terminal import echo
from asyncrl.tools.verl.names import verl_names_answered

P = ParamSpec("P")

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")

EXTRAS = {"numpy": "node", "pyarrow": "node", "torch": "train", "transformers": "train", "safetensors": "train"}
"""Extra of asyncrl that brings a package, for commands that find only in their course that they need it."""

OF_THE_MACHINE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOSPC}
OF_THE_MACHINE |= {errno.EDQUOT, errno.ENAMETOOLONG, errno.ELOOP}
"""Errors of paths that no code of ours can avoid. A file that is not there is either told better, or a bug."""

NAME_CHARS = 200


def together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One decorator for several options and arguments; the last one comes first in the help."""

    def decorate(command: Any) -> Any:
        for option in options:
            command = option(command)
        return command

    return decorate


columns_options = together(
    click.option("--answer-column", metavar="NAME", help="Column of texts or numbers.  [default: guessed]"),
    click.option("--prompt-column", metavar="NAME", help="Column of texts or chats.  [default: guessed]"),
)


def named_columns(prompt_column: str | None, answer_column: str | None) -> dict[str, str]:
    """Columns that were named, by their kind, ``prompt`` or ``answer``."""
    return {kind: name for kind, name in (("prompt", prompt_column), ("answer", answer_column)) if name}


def report_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Run a command within `errors_reported`."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        with errors_reported():
            command(*args, **kwargs)

    return wrapped


@contextmanager
def errors_reported() -> Iterator[None]:
    """
    Print an `AsyncrlError` as one line and exit with its code; any other exception is a bug and keeps its trace.

    An optional package that is not installed is a mistake in the configuration of the machine, and so is a path that
    cannot be used, unless a command says more about it. Ctrl-C is one line too.
    """
    try:
        with verl_names_answered():
            yield
    except AsyncrlError as error:
        _end(str(error), error.exit_code)
    except KeyboardInterrupt:
        _end("interrupted", RunInterrupted.exit_code)
    except UnicodeEncodeError as error:  # the name of a file, which Python has read by the shell's locale
        text = ascii(str(error.object)[:NAME_CHARS])
        _end(
            f"{text} is no text in UTF-8, because this shell has file names in {sys.getfilesystemencoding()}: set "
            f"LC_ALL=C.UTF-8, and not PYTHONUTF8=0",
            ConfigError.exit_code,
        )
    except OSError as error:
        if error.errno not in OF_THE_MACHINE or not error.filename:
            raise
        _end(
            f"cannot use {os.fsdecode(error.filename)}: {error.strerror}; name another path, or let this user use it",
            ConfigError.exit_code,
        )
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        install = f"pip install 'asyncrl[{EXTRAS[package]}]'"
        _end(f"this command needs {package}, which is not installed; run: {install}", ConfigError.exit_code)


def _end(sentence: str, exit_code: int) -> None:
    with suppress(OSError):  # nobody reads it: the exit code says it all the same
        echo(f"asyncrl: {sentence}", err=True)
    sys.exit(exit_code)


# ── run path ──────────────────────────────────────────────────────────────────────────────────
# The argument RUN of commands that read the files of a run: a run directory, by default the newest, and no address.

ADDRESSED = ("status", "top", "stop", "drain", "admit", "pause", "unpause", "set", "stacks")
"""Commands that ask a broker, and take its address too."""


class RunPath(click.ParamType[Path]):
    """A path, taken before its slashes are changed."""

    name = "run"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if "://" in str(value):
            self.fail(
                f"{value} is an address, but this command reads files: give the run directory, on the machine that has "
                f"it; an address is taken by {', '.join(ADDRESSED[:-1])} and {ADDRESSED[-1]}",
                param,
                ctx,
            )
        return Path(value)


RUN_PATH = RunPath()


def newest_run() -> Path:
    """The run below runs/ that began last; raises `click.UsageError` if there is none."""
    from asyncrl.records.run_directory import RunDirectory
    from asyncrl.records.run_record import find_runs

    if runs := find_runs(Path("runs")):
        return max(runs, key=lambda run: RunDirectory(run).config.stat().st_mtime)
    raise click.UsageError("there are no runs below runs/: give the directory of a run")
