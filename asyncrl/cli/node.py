"""
`asyncrl-node`: one role in the foreground, for systemd, supervisord, Slurm, or `asyncrl run`.

It does not daemonize and writes no pid file. It logs to standard error.
"""

import asyncio
import os
import socket
import sys
from pathlib import Path

import click

from asyncrl.client.handshake import identity
from asyncrl.config.run_file import load, to_toml
from asyncrl.errors import AsyncrlError, ConfigError
from asyncrl.messages import Role
from asyncrl.node.process import Job, run_process

ROLES = ("broker", "rollout", "reward", "trainer")


@click.command(context_settings={"show_default": True})
@click.option("--role", type=click.Choice(ROLES), required=True, help="What this process does.")
@click.option("--broker", "address", help="The broker's address, tcp://HOST:PORT. The broker itself binds it.")
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="Run file. Only for the broker.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one value. Only for the broker.")
@click.option("--name", help="Name of this node, unique in the run. [default: ROLE-HOSTNAME-PID]")
@click.option("--run-dir", type=click.Path(path_type=Path), help="An existing run directory. Only for the broker.")
@click.option("--replicas", metavar="auto|N", help="So many rollouts, each with its own devices. Only for a rollout.")
@click.option("--devices", metavar="0,1,...", help="Devices they may use, by number or UUID. Only with --replicas.")
@click.option("--wait", "wait_s", type=float, default=30.0, help="Seconds to wait for the broker to answer.")
@click.version_option(package_name="asyncrl")
def main(
    *,
    role: Role,
    address: str | None,
    config_path: Path | None,
    overrides: tuple[str, ...],
    name: str | None,
    run_dir: Path | None,
    replicas: str | None,
    devices: str | None,
    wait_s: float,
) -> None:
    """
    Run one asyncrl role. Nodes take the run's configuration from the broker.

    With --replicas auto there are as many rollouts as the machine has devices for, called NAME-0, NAME-1 and so on:
    one dies, it is started again. What CUDA_VISIBLE_DEVICES or ASCEND_RT_VISIBLE_DEVICES leaves out is not used.

    SIGTERM drains and exits 0; a second one exits at once. Exit code 78 is a mistake in the configuration: do not
    restart; nor 74, files that are damaged. 69 means the broker cannot be reached: restart later.
    """
    name = name or f"{role}-{socket.gethostname()}-{os.getpid()}"
    try:
        if (replicas or devices) and role != "rollout":
            raise ConfigError(f"--replicas and --devices are for rollouts, not for a {role}")
        if role == "broker":
            job = _broker_job(config_path, overrides, address, run_dir)
        else:
            if config_path or overrides or run_dir:
                raise ConfigError(f"--config, --set and --run-dir are the broker's; a {role} gets them from it")
            if address is None:
                raise ConfigError(f"--broker tcp://HOST:PORT is missing: a {role} needs to know where the broker is")
            if not address.startswith(("tcp://", "ipc://")):
                raise ConfigError(f"--broker is {address!r}: expected tcp://HOST:PORT or ipc://PATH")
            job = _replicas_job(address, name, replicas, devices, wait_s) or _node_job(role, address, name, wait_s)
    except AsyncrlError as error:
        click.echo(f"asyncrl-node: {error}", err=True)
        sys.exit(error.exit_code)
    sys.exit(run_process(job, name=name))


def _broker_job(config_path: Path | None, overrides: tuple[str, ...], address: str | None, run_dir: Path | None) -> Job:
    from asyncrl.files.atomic import replacing
    from asyncrl.files.disk import needed
    from asyncrl.node.broker import collect_rarely, create_directory, run_broker
    from asyncrl.observe.run_directory import RunDirectory

    if config_path is None:
        raise ConfigError("--config FILE is missing: the broker needs the run's configuration")
    if address:
        overrides = (*overrides, f'broker.bind="{address}"')
    config = load(config_path, overrides)
    directory = RunDirectory.reopen(run_dir) if run_dir else create_directory(config, config_path)
    directory.write_config(to_toml(config))
    # A broker that starts again listens where its nodes look for it.
    bind = directory.address.read_text().strip() if directory.address.exists() and not address else config.broker.bind

    def listening(at: str) -> None:
        with needed(directory.address), replacing(directory.address, durable=False) as unfinished:
            unfinished.write_text(at + "\n")

    async def job(stopping: asyncio.Event) -> None:
        collect_rarely()
        await run_broker(config, directory, bind=bind, listening=listening, stopping=stopping)

    return job


def _replicas_job(address: str, name: str, replicas: str | None, devices: str | None, wait_s: float) -> Job | None:
    """None if there is to be one rollout, in this process."""
    if replicas is None:
        if devices is not None:
            raise ConfigError("--devices is only read with --replicas; for one rollout, set CUDA_VISIBLE_DEVICES")
        return None
    if replicas != "auto" and not (replicas.isdecimal() and int(replicas)):
        raise ConfigError(f"--replicas is {replicas!r}: expected auto or a number from 1")
    from asyncrl.cli.launch.replicas import run_replicas

    count = None if replicas == "auto" else int(replicas)
    only = None if devices is None else [name.strip() for name in devices.split(",")]

    async def job(stopping: asyncio.Event) -> None:
        await run_replicas(address, name, count=count, only=only, wait_s=wait_s, stopping=stopping)

    return job


def _node_job(role: Role, address: str, name: str, wait_s: float) -> Job:
    who = identity(role, name)

    async def job(stopping: asyncio.Event) -> None:
        match role:
            case "rollout":
                from asyncrl.node.rollout import run_rollout

                await run_rollout(address, who, wait_s=wait_s, stopping=stopping)
            case "reward":
                from asyncrl.node.reward import run_reward

                await run_reward(address, who, wait_s=wait_s, stopping=stopping)
            case "trainer":
                from asyncrl.node.trainer import run_trainer

                await run_trainer(address, who, wait_s=wait_s, stopping=stopping)

    return job


if __name__ == "__main__":
    main()
