"""`asyncrl-node`: one role in the foreground, for `asyncrl run`, systemd or Slurm; no pid file, logs to stderr."""

import asyncio
import os
import socket
import sys
from pathlib import Path

import click

from asyncrl.cli.terminal import report_errors
from asyncrl.client.handshake import identity
from asyncrl.config.run_file import load_config, to_toml
from asyncrl.errors import ConfigError
from asyncrl.messages import Role
from asyncrl.node.process import Job, run_process

ROLES = ("broker", "rollout", "reward", "trainer")


@click.command(context_settings={"show_default": True})
@click.option("--role", type=click.Choice(ROLES), required=True, help="Role of this process.")
@click.option("--broker", "address", metavar="ADDRESS", help="The broker's tcp://HOST:PORT; the broker listens on it.")
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="Run file. Broker only.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one setting. Broker only.")
@click.option("--name", help="Name of this node, unique in the run.  [default: ROLE-HOSTNAME-PID]")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Existing run directory to continue. Broker only.")
@click.option("--replicas", metavar="auto|N", help="Number of rollouts, each with its own devices. Rollout only.")
@click.option("--devices", metavar="0,1,...", help="Devices to use, by number or UUID. Only with --replicas.")
@click.option("--wait", "wait_s", type=float, default=30.0, help="Seconds to wait for the broker's answer.")
@click.version_option(package_name="asyncrl")
@report_errors
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
    Run one role of a run in the foreground.

    Start the broker with the run file; all other nodes receive the configuration from the broker.

    \b
    Example, on one machine (sockets bind loopback addresses only):
      asyncrl-node --role broker --config run.toml --broker tcp://127.0.0.1:5570
      asyncrl-node --role reward --broker tcp://127.0.0.1:5570
      asyncrl-node --role trainer --broker tcp://127.0.0.1:5570
      asyncrl-node --role rollout --broker tcp://127.0.0.1:5570 --replicas auto

    --replicas auto starts as many rollouts as the machine has devices for, named NAME-0, NAME-1 and so on, and restarts
    one that dies. Devices hidden by CUDA_VISIBLE_DEVICES or ASCEND_RT_VISIBLE_DEVICES are not used.

    SIGTERM drains the node, which then exits with 0; a second SIGTERM exits at once. Exit codes 78 (mistake in the
    configuration) and 74 (damaged files): do not restart. Exit code 69 (broker not reachable): restart later.
    """
    name = name or f"{role}-{socket.gethostname()}-{os.getpid()}"
    if (replicas or devices) and role != "rollout":
        raise ConfigError(f"--replicas and --devices are for rollouts, not for a {role}")
    if role == "broker":
        job = _broker_job(config_path, overrides, address, run_dir)
    else:
        if config_path or overrides or run_dir:
            raise ConfigError(
                f"--config, --set and --run-dir are for the broker only; a {role} gets the configuration from it"
            )
        if address is None:
            raise ConfigError(f"--broker is missing: a {role} needs the broker's address, tcp://HOST:PORT")
        if not address.startswith(("tcp://", "ipc://")):
            raise ConfigError(f"--broker is {address!r}: expected tcp://HOST:PORT or ipc://PATH")
        job = _replicas_job(address, name, replicas, devices, wait_s) or _node_job(role, address, name, wait_s)
    sys.exit(run_process(job, name=name))


def _broker_job(config_path: Path | None, overrides: tuple[str, ...], address: str | None, run_dir: Path | None) -> Job:
    from asyncrl.files.atomic import replacing
    from asyncrl.files.disk import needed
    from asyncrl.node.broker import create_directory, raise_gc_threshold, run_broker
    from asyncrl.observe.run_directory import RunDirectory

    if config_path is None:
        raise ConfigError("--config FILE is missing: the broker needs the run's configuration")
    if address:
        overrides = (*overrides, f'broker.bind="{address}"')
    config = load_config(config_path, overrides)
    directory = RunDirectory.reopen(run_dir) if run_dir else create_directory(config, config_path)
    directory.write_config(to_toml(config))
    # A restarted broker listens on its old address, where its nodes look for it.
    bind = directory.address.read_text().strip() if directory.address.exists() and not address else config.broker.bind

    def write_address(at: str) -> None:
        with needed(directory.address), replacing(directory.address, durable=False) as unfinished:
            unfinished.write_text(at + "\n")

    async def job(stopping: asyncio.Event) -> None:
        raise_gc_threshold()
        await run_broker(config, directory, bind=bind, listening=write_address, stopping=stopping)

    return job


def _replicas_job(address: str, name: str, replicas: str | None, devices: str | None, wait_s: float) -> Job | None:
    """Job that runs several rollouts; None without --replicas, for one rollout in this process."""
    if replicas is None:
        if devices is not None:
            raise ConfigError("--devices works only with --replicas; for one rollout, set CUDA_VISIBLE_DEVICES")
        return None
    if replicas != "auto" and not (replicas.isdecimal() and int(replicas)):
        raise ConfigError(f"--replicas is {replicas!r}: expected auto or a number of at least 1")
    from asyncrl.cli.launch.replicas import run_replicas

    count = None if replicas == "auto" else int(replicas)
    only = None if devices is None else [name.strip() for name in devices.split(",")]

    async def job(stopping: asyncio.Event) -> None:
        await run_replicas(address, name, count=count, only=only, wait_s=wait_s, stopping=stopping)

    return job


def _node_job(role: Role, address: str, name: str, wait_s: float) -> Job:
    node = identity(role, name)

    async def job(stopping: asyncio.Event) -> None:
        match role:
            case "rollout":
                from asyncrl.node.rollout import run_rollout

                await run_rollout(address, node, wait_s=wait_s, stopping=stopping)
            case "reward":
                from asyncrl.node.reward import run_reward

                await run_reward(address, node, wait_s=wait_s, stopping=stopping)
            case "trainer":
                from asyncrl.node.trainer.trainer import run_trainer

                await run_trainer(address, node, wait_s=wait_s, stopping=stopping)

    return job


if __name__ == "__main__":
    main()
