"""What a command says when it cannot do what it was asked."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import click

from asyncrl.errors import AsyncrlError

P = ParamSpec("P")


def one_sentence(command: Callable[P, None]) -> Callable[P, None]:
    """Errors of ours are said in one line, with their exit code; anything else is a bug and shows its traceback."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except AsyncrlError as error:
            click.echo(f"asyncrl: {error}", err=True)
            sys.exit(error.exit_code)

    return wrapped
