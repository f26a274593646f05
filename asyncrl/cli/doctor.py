"""`asyncrl doctor`: the diagnosis of this machine, of its fitness for one run, or of a cluster, printed."""

import asyncio
import os
import sys
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from asyncrl.cli.parts import json_option, report_errors
from asyncrl.cli.plan import device_memory_option, host_memory_option
from asyncrl.cli.settings import set_option
from asyncrl.config.run_file import load_config
from asyncrl.runtime.machine import DoctorReport, State
from asyncrl.terminal import aligned, echo, say, to_json
from asyncrl.tools.cluster.judgement import judge, load
from asyncrl.tools.cluster.survey import survey

# ── output ────────────────────────────────────────────────────────────────────────────────────
# Formats the diagnosis as text and as JSON.

MARKS: dict[State, tuple[str, str]] = {"good": ("✓", "green"), "absent": ("·", "dim"), "bad": ("✗", "bold red")}
"""Mark and rich style of each state."""


def show(console: Console, diagnosis: DoctorReport) -> None:
    """Print the diagnosis in sections, then one sentence for each problem."""
    for line in _table(diagnosis):
        say(console, line)
    for problem in diagnosis.problems:
        say(console, Text.assemble(("problem  ", "bold red"), problem))


def to_plain(diagnosis: DoctorReport) -> dict[str, Any]:
    return {"is_fit": diagnosis.is_fit, "problems": diagnosis.problems, "lines": diagnosis.lines}


def _table(diagnosis: DoctorReport) -> Iterator[Text]:
    rows = aligned([["", line.name, line.what] for line in diagnosis.lines])
    printed = zip(diagnosis.lines, rows, strict=True)
    for section, lines in groupby(printed, key=lambda pair: pair[0].section):
        yield Text(section, style="bold")
        for line, row in lines:
            mark, style = MARKS[line.state]
            yield Text.assemble(" ", (mark, style), (row, "dim" if line.state == "absent" else ""))
        yield Text()


# ── command ───────────────────────────────────────────────────────────────────────────────────

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("config_path", metavar="[CONFIG]", type=PATH, required=False)
@click.option("--role", type=click.Choice(["broker", "reward", "trainer", "rollout"]), help="Check for this role only.")
@click.option("--npu", is_flag=True, help="Check only Ascend NPUs, thoroughly: send 64 MiB between two of them.")
@click.option("--cluster", "cluster_file", type=PATH, metavar="FILE", help="Check the machines that FILE names.")
@click.option("--probe", is_flag=True, hidden=True, help="Answer a question of --cluster from standard input.")
@set_option
@device_memory_option
@host_memory_option
@json_option
@report_errors
def doctor(
    config_path: Path | None,
    overrides: tuple[str, ...],
    *,
    role: str | None,
    npu: bool,
    cluster_file: Path | None,
    probe: bool,
    device_memory: str,
    host_memory: str,
    as_json: bool,
) -> None:
    """
    Check which roles this machine or a cluster can run.

    Checks installed packages, devices, and collectives between two processes. Prints one sentence for each problem.
    Exits with 1 if the machine can run no role, or not the one given by --role.

    CONFIG is a run file: then everything that this run needs is checked, and nothing else. Exits with 1 if something
    that it needs is missing.

    --cluster FILE runs asyncrl on each machine through a command such as ssh. It checks addresses, keys, versions,
    models, limits and disks, and sends data between the machines. Exits with 1 if a check fails.
    """
    from asyncrl.tools.doctor import diagnose, diagnose_npu, diagnose_run

    if sum(map(bool, (config_path, npu, role, cluster_file, probe))) > 1:
        raise click.UsageError("CONFIG, --npu, --role and --cluster are different checks: give one of them")
    if config_path is None and (overrides or device_memory or host_memory):
        raise click.UsageError("--set, --device-memory and --host-memory are for CONFIG; add a run file")
    if probe:
        from asyncrl.tools.cluster.probe import answer

        answer(sys.stdin.buffer, sys.stdout.buffer)
        return
    with Console(stderr=True).status("checking"):  # rich shows this on a terminal only.
        if config_path:
            config = load_config(config_path, overrides)
            diagnosis = asyncio.run(diagnose_run(config, device_memory, host_memory, partial(echo, err=True)))
        elif cluster_file:
            diagnosis = judge(asyncio.run(survey(load(cluster_file))))
        else:
            diagnosis = asyncio.run(diagnose_npu(os.environ) if npu else diagnose(os.environ, role or ""))
    if as_json:
        echo(to_json(to_plain(diagnosis)))
    else:
        show(Console(), diagnosis)
    sys.exit(0 if diagnosis.is_fit else 1)
