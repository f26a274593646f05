"""
Lines for a terminal: the only module that prints.

    text ─▶ echo, say ─▶ shown_lines ─▶ terminal

Lines, tables and errors may have texts that come from elsewhere, such as exceptions of rewards, names of nodes or what
a policy wrote. Here the last of what a terminal would obey becomes an escape; JSON has escapes of its own, which say
the same.
"""

import json
import shlex
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import msgspec

from asyncrl.foreign_text import acting, escaped, shown_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Row = list[str]

SLOW_S = 3.0
"""Seconds after which a command that prints nothing yet says what it does."""


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


def command_line(*words: object) -> str:
    """A command to copy into a shell, with its words quoted."""
    return shlex.join(map(str, words))


@contextmanager
def told_if_slow(sentence: str, slow_s: float = SLOW_S) -> Iterator[None]:
    """Print a sentence to standard error, be it a terminal or a log, when what is done takes longer than ``slow_s``."""
    timer = threading.Timer(slow_s, partial(echo, sentence, err=True))
    timer.daemon = True
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
