"""`asyncrl doctor`: what was found out about this machine, as a table for a terminal."""

from collections.abc import Iterator
from itertools import groupby

import msgspec
from rich.console import Console
from rich.text import Text

from asyncrl.cli.tables import aligned
from asyncrl.node.machine.diagnosis import Diagnosis, State

MARKS: dict[State, tuple[str, str]] = {"good": ("✓", "green"), "absent": ("·", "dim"), "bad": ("✗", "bold red")}
"""How a state looks, and in which style."""


def show(console: Console, diagnosis: Diagnosis) -> None:
    """Print sections of aligned lines, then a sentence for each problem."""
    for line in _table(diagnosis):
        console.print(line, soft_wrap=True, highlight=False)
    for problem in diagnosis.problems:
        console.print(Text.assemble(("problem  ", "bold red"), problem), soft_wrap=True, highlight=False)


def to_json(diagnosis: Diagnosis) -> str:
    """The same for a program, indented."""
    return msgspec.json.format(
        msgspec.json.encode({"is_fit": diagnosis.is_fit, "problems": diagnosis.problems, "lines": diagnosis.lines}),
        indent=2,
    ).decode()


def _table(diagnosis: Diagnosis) -> Iterator[Text]:
    rows = aligned([["", line.name, line.what] for line in diagnosis.lines])
    printed = zip(diagnosis.lines, rows, strict=True)
    for section, lines in groupby(printed, key=lambda pair: pair[0].section):
        yield Text(section, style="bold")
        for line, row in lines:
            mark, style = MARKS[line.state]
            yield Text.assemble(" ", (mark, style), (row, "dim" if line.state == "absent" else ""))
        yield Text()
