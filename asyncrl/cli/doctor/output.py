"""`asyncrl doctor`: formats the diagnosis of this machine, or of a cluster."""

import asyncio
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from asyncrl.cli.terminal import aligned, say
from asyncrl.node.machine.cluster.cluster_file import load
from asyncrl.node.machine.cluster.judgement import judge
from asyncrl.node.machine.cluster.survey import survey
from asyncrl.node.machine.diagnosis import Diagnosis, State

MARKS: dict[State, tuple[str, str]] = {"good": ("✓", "green"), "absent": ("·", "dim"), "bad": ("✗", "bold red")}
"""Mark and rich style of each state."""


def diagnose_cluster(cluster_file: Path) -> Diagnosis:
    """Check the machines of a cluster file. Raises `ConfigError` if the file is wrong."""
    return judge(asyncio.run(survey(load(cluster_file))))


def show(console: Console, diagnosis: Diagnosis) -> None:
    """Print the diagnosis in sections, then one sentence for each problem."""
    for line in _table(diagnosis):
        say(console, line)
    for problem in diagnosis.problems:
        say(console, Text.assemble(("problem  ", "bold red"), problem))


def to_plain(diagnosis: Diagnosis) -> dict[str, Any]:
    return {"is_fit": diagnosis.is_fit, "problems": diagnosis.problems, "lines": diagnosis.lines}


def _table(diagnosis: Diagnosis) -> Iterator[Text]:
    rows = aligned([["", line.name, line.what] for line in diagnosis.lines])
    printed = zip(diagnosis.lines, rows, strict=True)
    for section, lines in groupby(printed, key=lambda pair: pair[0].section):
        yield Text(section, style="bold")
        for line, row in lines:
            mark, style = MARKS[line.state]
            yield Text.assemble(" ", (mark, style), (row, "dim" if line.state == "absent" else ""))
        yield Text()
