"""Output shared by the commands: errors in one line, aligned tables, indented JSON."""

import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, ParamSpec

import click
import msgspec

from asyncrl.errors import AsyncrlError, ConfigError

P = ParamSpec("P")

Row = list[str]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")

SLOW_S = 3.0
"""Seconds after which a command that prints nothing yet says what it does."""
EXTRAS = {"numpy": "node", "pyarrow": "node", "torch": "train", "transformers": "train", "safetensors": "train"}
"""Extra of asyncrl that brings a package, for commands that find only in their course that they need it."""


def report_errors(command: Callable[P, None]) -> Callable[P, None]:
    """
    Print an `AsyncrlError` as one line and exit with its code; any other exception is a bug and keeps its trace.

    An optional package that is not installed is a mistake in the configuration of the machine.
    """

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except AsyncrlError as error:
            _end(str(error), error.exit_code)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRAS:
                raise
            install = f"pip install 'asyncrl[{EXTRAS[package]}]'"
            _end(f"this command needs {package}, which is not installed; run: {install}", ConfigError.exit_code)

    return wrapped


def _end(sentence: str, exit_code: int) -> None:
    click.echo(f"asyncrl: {sentence}", err=True)
    sys.exit(exit_code)


@contextmanager
def told_if_slow(sentence: str, slow_s: float = SLOW_S) -> Iterator[None]:
    """Print a sentence to standard error, if that is a terminal, when what is done takes longer than ``slow_s``."""
    timer = threading.Timer(slow_s, partial(click.echo, sentence, err=True))
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def aligned(rows: Sequence[Row], right: Collection[int] = ()) -> list[str]:
    """Lines with aligned columns, two spaces apart; the columns in ``right`` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Row) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(cells)).rstrip()

    return [line(row) for row in rows]


def printable(line: str) -> str:
    """The line without what a terminal would obey: a policy writes whatever is rewarded."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line.expandtabs())


def to_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
