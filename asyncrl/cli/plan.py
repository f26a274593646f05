"""`asyncrl plan`: the predicted step time of a cluster, or with `--memory` the memory of a run."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from asyncrl.cli.parts import json_option, report_errors
from asyncrl.cli.settings import set_option
from asyncrl.config.run_file import load_config
from asyncrl.errors import ConfigError
from asyncrl.terminal import aligned, echo, to_json

if TYPE_CHECKING:  # it imports torch
    from asyncrl.runtime.memory import MemoryPlan

# ── memory options ────────────────────────────────────────────────────────────────────────────
# Options for memory that is not that of this machine, where no single command has them.

device_memory_option = click.option(
    "--device-memory",
    default="",
    show_default=False,
    metavar="SIZE",
    help="Memory of each device, such as 80GB.  [default: that of the devices here]",
)
host_memory_option = click.option(
    "--host-memory",
    default="",
    show_default=False,
    metavar="SIZE",
    help="Memory of the machine, such as 1TB.  [default: that of this machine]",
)


def first_given(device_memory: str) -> str:
    """Name of the first of the two options, one of which is given."""
    return "--device-memory" if device_memory else "--host-memory"


# ── command ───────────────────────────────────────────────────────────────────────────────────

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("plan_path", metavar="PLAN", type=PATH)
@set_option
@json_option
@click.option("--picture", type=PATH, metavar="FILE", help="Also write a self-contained HTML page.")
@click.option("--search", "searched", is_flag=True, help="Search for the best split of the devices, for minutes.")
@click.option("--memory", is_flag=True, help="Predict memory instead; PLAN is a run file.")
@device_memory_option
@host_memory_option
@report_errors
def plan(
    plan_path: Path,
    overrides: tuple[str, ...],
    *,
    as_json: bool,
    picture: Path | None,
    searched: bool,
    memory: bool,
    device_memory: str,
    host_memory: str,
) -> None:
    """
    Predict the speed of a cluster, or the memory of a run.

    PLAN is a TOML file with measured speeds, completion lengths and a schedule; conf/plan/ has one that explains every
    number. The broker's own rules run against simulated nodes in simulated time, and tell step time, idle shares and
    staleness. Speed-ups are relative to synchronous training that uses all devices for sampling and for training in
    turn.

    With --memory, PLAN is a run file, and the answer is the bytes on a device and on a host at every phase. Only the
    config.json of its model has to be there.

    \b
    Example:
      asyncrl plan conf/plan/verl-128.toml
      asyncrl plan --memory conf/quickstart.toml --device-memory 80GB
    """
    if memory:
        if picture or searched:
            raise ConfigError("--picture and --search are not for --memory; remove them")
        _plan_memory(plan_path, overrides, device_memory, host_memory, as_json=as_json)
        return
    if device_memory or host_memory:
        raise ConfigError(f"{first_given(device_memory)} is for --memory; add it, or remove both")
    from rich.console import Console

    from asyncrl.tools.plan.page import make_report, report_table, write_page
    from asyncrl.tools.plan.plan_file import load as load_plan

    console, loaded = Console(stderr=True), load_plan(plan_path, overrides)
    if not console.is_terminal:
        echo(f"simulating{', and searching splits' if searched else ''}", err=True)
    with console.status("simulating"):  # rich shows this on a terminal only.
        answer = make_report(loaded, searched=searched)
    echo(to_json(answer) if as_json else report_table(answer, plan_path.stem))
    if picture:
        write_page(answer, plan_path.stem, picture)
        echo(picture, err=True)


def _plan_memory(
    path: Path, overrides: tuple[str, ...], device_memory: str, host_memory: str, *, as_json: bool
) -> None:
    from asyncrl.runtime.machine import require_train
    from asyncrl.runtime.model_files import with_local_copies

    config = with_local_copies(load_config(path, overrides), partial(echo, err=True), has_weights=False)
    require_train()
    from asyncrl.runtime.memory import plan_memory, room_here

    room = room_here(config, device_memory, host_memory)
    answer = plan_memory(config, room)
    echo(to_json(answer) if as_json else _memory_table(answer, path.stem))


def _memory_table(plan: "MemoryPlan", name: str) -> str:
    """Bytes of every phase and of its parts, on a device and on a host; ``name`` is the title."""
    from asyncrl.runtime.machine import format_bytes

    rows = [["", f"each {'process' if plan.device == 'cpu' else f'{plan.device} device'}", "host"]]
    trainer = ((f"trainer, {phase.name}", phase) for phase in plan.trainer)
    for title, phase in (*trainer, ("one rollout", plan.rollout), ("broker", plan.broker)):
        rows.append([title, format_bytes(phase.device), format_bytes(phase.host)])
        for part in phase.parts:
            rows.append([f"  {part.name}", *(format_bytes(size) if size else "" for size in (part.device, part.host))])
    lines = [
        f"{name}: trainer of {plan.ranks} ranks and {plan.replicas} rollouts a machine, whose host needs "
        f"{format_bytes(plan.host)}",
        "",
        *aligned(rows, right=[1, 2]),
        "",
        "assumptions",
        *(f"  - {assumption}" for assumption in plan.assumptions),
        *(["", f"does not fit: {plan.problem}"] if plan.problem else []),
    ]
    return "\n".join(lines)
