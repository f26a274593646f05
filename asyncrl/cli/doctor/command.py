"""`asyncrl doctor`."""

import sys
from functools import partial
from pathlib import Path

import click

from asyncrl.cli.memory_options import device_memory_option, host_memory_option
from asyncrl.cli.settings.command import set_option
from asyncrl.cli.terminal import echo, json_option, report_errors, to_json
from asyncrl.config.run_file import load_config

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
    import asyncio
    import os

    from rich.console import Console

    from asyncrl.cli.doctor.output import diagnose_cluster, show, to_plain
    from asyncrl.cli.launch.checks.fitness import diagnose_run
    from asyncrl.node.hub import with_local_copies
    from asyncrl.node.machine.doctor import diagnose, diagnose_npu

    if sum(map(bool, (config_path, npu, role, cluster_file, probe))) > 1:
        raise click.UsageError("CONFIG, --npu, --role and --cluster are different checks: give one of them")
    if config_path is None and (overrides or device_memory or host_memory):
        raise click.UsageError("--set, --device-memory and --host-memory are for CONFIG; add a run file")
    if probe:
        from asyncrl.node.machine.cluster.probe import answer

        answer(sys.stdin.buffer, sys.stdout.buffer)
        return
    with Console(stderr=True).status("checking"):  # rich shows this on a terminal only.
        if config_path:
            config = with_local_copies(load_config(config_path, overrides), partial(echo, err=True))
            diagnosis = asyncio.run(diagnose_run(config, device_memory, host_memory))
        elif cluster_file:
            diagnosis = diagnose_cluster(cluster_file)
        else:
            diagnosis = asyncio.run(diagnose_npu(os.environ) if npu else diagnose(os.environ, role or ""))
    if as_json:
        echo(to_json(to_plain(diagnosis)))
    else:
        show(Console(), diagnosis)
    sys.exit(0 if diagnosis.is_fit else 1)
