"""
Output of all commands: the only module of the command line that prints.

    text ─▶ echo, say ─▶ shown_lines ─▶ terminal

Lines, tables and errors may have texts that come from elsewhere, such as exceptions of rewards, names of nodes or what
a policy wrote. Here the last of what a terminal would obey becomes an escape; JSON has escapes of its own, which say
the same.
"""

import json
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import click
import msgspec

from asyncrl.errors import AsyncrlError, ConfigError
from asyncrl.foreign_text import acting, escaped, shown_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

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
    echo(f"asyncrl: {sentence}", err=True)
    sys.exit(exit_code)


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print lines to standard output, or with ``err`` to standard error; ``nl`` ends the last one."""
    click.echo(shown_lines(str(text)), err=err, nl=nl)


def say(console: "Console", text: "str | Text" = "") -> None:
    """Print lines to a console of rich, in the styles that a `Text` has; markup in a plain text is text."""
    if isinstance(text, str):
        console.print(shown_lines(text), soft_wrap=True, highlight=False, markup=False)
        return
    shown = text.blank_copy()
    for segment in text.render(console):
        shown.append(shown_lines(segment.text), segment.style)
    console.print(shown, soft_wrap=True, highlight=False)


@contextmanager
def told_if_slow(sentence: str, slow_s: float = SLOW_S) -> Iterator[None]:
    """Print a sentence to standard error, if that is a terminal, when what is done takes longer than ``slow_s``."""
    timer = threading.Timer(slow_s, partial(echo, sentence, err=True))
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def aligned(rows: Sequence[Row], right: Collection[int] = ()) -> list[str]:
    """Lines with aligned columns, two spaces apart; the columns in ``right`` are right-aligned."""
    rows = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Row) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(cells)).rstrip()

    return [line(row) for row in rows]


def to_json(value: Any) -> str:
    """Indented JSON, with an escape of JSON for each character that a terminal would obey."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return "\n".join("".join(map(_json_letter, line)) if acting(line) else line for line in text.split("\n"))


def _json_letter(letter: str) -> str:
    return json.dumps(letter)[1:-1] if acting(letter) else letter
