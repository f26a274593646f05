"""Output shared by the commands: errors in one line, aligned tables, indented JSON."""

import sys
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any, ParamSpec

import click
import msgspec

from asyncrl.errors import AsyncrlError

P = ParamSpec("P")

Row = list[str]


def report_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Print an `AsyncrlError` as one line and exit with its code; any other exception is a bug and keeps its trace."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except AsyncrlError as error:
            click.echo(f"asyncrl: {error}", err=True)
            sys.exit(error.exit_code)

    return wrapped


def aligned(rows: Sequence[Row], right: Collection[int] = ()) -> list[str]:
    """Lines with aligned columns, two spaces apart; the columns in ``right`` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Row) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(cells)).rstrip()

    return [line(row) for row in rows]


def to_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
