"""`asyncrl-node`: one role in the foreground, for `asyncrl run`, systemd or Slurm; no pid file, logs to stderr."""

import os
import socket
import sys
from pathlib import Path

import click

from asyncrl.cli.parts import errors_reported
from asyncrl.config.addresses import check_interface
from asyncrl.errors import ConfigError
from asyncrl.messages.words import Role, WeightsVia
from asyncrl.plug_in import ALLOW_VARIABLE
from asyncrl.runtime.local_address import INTERFACE_VARIABLE
from asyncrl.runtime.machine import require_node
from asyncrl.runtime.metrics_server import METRICS_VARIABLE, OPEN_VARIABLE, TARGETS_VARIABLE, metrics_options
from asyncrl.runtime.node_jobs import (
    NodeOptions,
    broker_job,
    finder,
    node_job,
    replicas_job,
    spool_job,
)
from asyncrl.runtime.process import LogFormat, run_process
from asyncrl.runtime.sessions import RunNode
from asyncrl.version import VERSION
from asyncrl.wire.handshake import identity
from asyncrl.wire.run_address import configured_key, configured_secret, read_credentials
from asyncrl.workers.printed import FORMAT_VARIABLE

PATH = click.Path(path_type=Path)
ROLES = ("broker", "rollout", "reward", "trainer", "spool")


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--role", type=click.Choice(ROLES), required=True, help="Role of this process.")
@click.option("--broker", "address", metavar="ADDRESS", help="The broker's tcp://HOST:PORT; the broker listens on it.")
@click.option("--config", "config_path", type=PATH, help="Run file. Broker only.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one setting. Broker only.")
@click.option("--name", help="Name of this node, unique in the run; see below.")
@click.option(
    "--run-dir",
    type=PATH,
    help="Run directory. Broker: created, or continued if it exists. Others: instead of --broker.",
)
@click.option("--secret", "secret_file", type=PATH, help="File with the run's secret, for TCP addresses.")
@click.option("--key", "key_file", type=PATH, help="File with this node's key. For a broker with --keys.")
@click.option("--keys", "key_folder", type=PATH, help="Folder of `asyncrl keys`. Broker only.")
@click.option("--replicas", metavar="auto|N", help="Number of rollouts, each with its own devices. Rollout only.")
@click.option("--devices", metavar="0,1,...", help="Devices to use, by number or UUID. Only with --replicas.")
@click.option(
    "--weights",
    type=click.Choice(["collective", "spool"]),
    envvar="ASYNCRL_WEIGHTS",
    default="collective",
    help="Way by which weights reach a rollout; spool works through one connection to the broker's machine.",
)
@click.option("--dir", "folder", type=PATH, help="Folder of the payloads, made if it is missing. Spool only.")
@click.option("--bind", metavar="ADDRESS", help="Where to serve, tcp://HOST:PORT; see below. Spool only.")
@click.option("--fetch", type=click.Choice(["auto", "never"]), help="Fetch a missing model from the broker's machine.")
@click.option("--allow-code", multiple=True, metavar="DIR|MODULE", help="Import functions from here only; repeatable.")
@click.option("--interface", metavar="NAME|ADDRESS|CIDR", help="Network interface for weights.")
@click.option(
    "--metrics",
    envvar=METRICS_VARIABLE,
    metavar="[HOST:]PORT",
    help="Serve metrics and health here; port 0 takes a free one. See below.",
)
@click.option(
    "--metrics-open", is_flag=True, envvar=OPEN_VARIABLE, help="Let other machines read --metrics, without a key."
)
@click.option(
    "--metrics-targets",
    type=PATH,
    envvar=TARGETS_VARIABLE,
    metavar="DIR",
    help="Leave the address of the metrics here, for Prometheus' file_sd_configs.  [default: RUN/metrics]",
)
@click.option("--traces", is_flag=True, help="Send spans of every trajectory by OpenTelemetry; see below. Broker only.")
@click.option(
    "--log-format",
    type=click.Choice(["auto", "json", "text"]),
    envvar=FORMAT_VARIABLE,
    default="auto",
    help="Format of the log; auto is text on a terminal, and JSON elsewhere.",
)
@click.option("--wait", "wait_s", type=float, default=30.0, help="Seconds to wait for the broker's answer.")
@click.version_option(VERSION)
def main(
    *,
    role: Role,
    address: str | None,
    config_path: Path | None,
    overrides: tuple[str, ...],
    name: str | None,
    run_dir: Path | None,
    secret_file: Path | None,
    key_file: Path | None,
    key_folder: Path | None,
    replicas: str | None,
    devices: str | None,
    weights: WeightsVia,
    folder: Path | None,
    bind: str | None,
    fetch: str | None,
    allow_code: tuple[str, ...],
    interface: str | None,
    metrics: str | None,
    metrics_open: bool,
    metrics_targets: Path | None,
    traces: bool,
    log_format: LogFormat,
    wait_s: float,
) -> None:
    """
    Run one role of a run in the foreground.

    Start the broker with the run file; all other nodes receive the configuration from the broker. The broker's command
    creates the run, and given again it continues the run.

    \b
    Example, on one machine:
      asyncrl-node --role broker --config run.toml --run-dir runs/a \\
        --broker tcp://127.0.0.1:5570
      asyncrl-node --role reward --broker tcp://127.0.0.1:5570
      asyncrl-node --role trainer --broker tcp://127.0.0.1:5570
      asyncrl-node --role rollout --broker tcp://127.0.0.1:5570 --replicas auto

    --replicas auto starts as many rollouts as the machine has devices for, named NAME-0, NAME-1 and so on, and restarts
    one that dies. Devices hidden by CUDA_VISIBLE_DEVICES or ASCEND_RT_VISIBLE_DEVICES are not used.

    For several machines, let the broker listen on --broker tcp://*:5570, and give the others its machine's name.
    Weights then travel over the interface of the route to the broker, unless --interface names another.

    A node's name is ROLE-HOSTNAME-PID unless --name is given, without the PID for a trainer or a spool; a
    broker's is broker. Services need a name that stays the same: a node that was killed is then replaced at once.

    A spool stores payloads in --dir; started again with the same folder, it serves them again. It listens on a free
    port of the interface on its route to the broker, unless --bind names another address.

    --weights spool is for rollouts that the trainer cannot reach, such as those of another data centre: they fetch what
    changed from version to version from the spool, and no other node waits for them.

    A rollout or trainer whose machine lacks the model's directory fetches it from the broker's machine into
    $XDG_CACHE_HOME/asyncrl, unless --fetch is never.

    A node imports the functions that the run's configuration names, such as rewards, unless --allow-code limits it to
    folders and modules of its operator's choice.

    Nodes of another user need --secret RUN/secret, or the variable ASYNCRL_SECRET_FILE. If the broker has --keys, they
    need --key FILE or ASYNCRL_KEY_FILE instead, and their names begin with the name of the key.

    --metrics serves /metrics for Prometheus, /healthz and /readyz over HTTP, on the loopback interface unless a HOST is
    given, and then only with --metrics-open (ASYNCRL_METRICS_OPEN=1). A file in RUN/metrics, or in --metrics-targets
    (ASYNCRL_METRICS_TARGETS), tells Prometheus the address. With --replicas, this process takes the port, and the
    rollouts those after it.

    --traces sends the life of every trajectory as spans to a collector of OpenTelemetry, by OTLP over HTTP. The usual
    variables say where it is, such as OTEL_EXPORTER_OTLP_ENDPOINT=http://10.0.0.9:4318.

    SIGTERM, SIGINT and SIGHUP drain the node, which then exits with 143: restart it, as its run goes on. A second one
    exits at once. Exit codes 0 (the run is over, or `asyncrl drain` took the node away), 1 (broker: the run failed), 78
    (mistake in the configuration) and 74 (damaged files): do not restart. Exit code 69 (broker not reachable): restart
    later.
    """
    with errors_reported():
        require_node()
        if allow_code:
            os.environ[ALLOW_VARIABLE] = os.pathsep.join(allow_code)
        if key_file and secret_file:
            raise ConfigError("--key and --secret were both given: a node connects with one of them")
        name = name or default_name(role, key_file or configured_key(os.environ))
        _require_role(role, bool(replicas or devices), "--replicas and --devices are for rollouts", "rollout")
        _require_role(role, bool(folder or bind), "--dir and --bind are for spools", "spool")
        _require_role(
            role,
            interface is not None,
            "--interface is for rollouts and trainers, which move weights",
            "rollout",
            "trainer",
        )
        if interface is not None:
            check_interface(interface, "--interface")
            os.environ[INTERFACE_VARIABLE] = interface
        is_chosen = weights != "collective"
        _require_role(role, is_chosen, f"--weights (ASYNCRL_WEIGHTS) is {weights}: that is for rollouts", "rollout")
        _require_role(
            role, fetch is not None, "--fetch is for rollouts and trainers, which load a model", "rollout", "trainer"
        )
        _require_role(role, traces, "--traces is for the broker, which sees every stage of a trajectory", "broker")
        serving = metrics_options(metrics, is_open=metrics_open, run=run_dir, targets=metrics_targets)
        options = NodeOptions(weights, may_fetch=fetch != "never", wait_s=wait_s, metrics=serving)
        if role == "broker":
            if key_file:
                raise ConfigError(
                    "--key is for nodes: a broker has --keys DIR, the folder that `asyncrl keys init` made"
                )
            job = broker_job(
                config_path=config_path,
                overrides=overrides,
                address=address,
                run_dir=run_dir,
                secret_file=secret_file or configured_secret(os.environ),
                key_folder=key_folder,
                is_traced=traces,
            )
        else:
            if config_path or overrides:
                raise ConfigError(
                    f"--config and --set are for the broker only; a {role} gets the configuration from it"
                )
            if key_folder:
                raise ConfigError(f"--keys is for the broker: a {role} has --key FILE, made by `asyncrl keys add`")
            find = finder(role, address, run_dir, key_file or secret_file, wait_s)
            node = RunNode(identity(role, name), find, wait_s=wait_s, run_dir=run_dir)
            if role == "spool":
                job = spool_job(node, folder, bind)
            else:
                job = replicas_job(node, replicas, devices, options) or node_job(node, options)
    sys.exit(run_process(job, name=name, role=role, metrics=serving, log_format=log_format, run_dir=run_dir))


def _require_role(role: Role, is_given: bool, sentence: str, *roles: Role) -> None:
    """Raise `ConfigError`, which begins with ``sentence``, if an option is given to another role than ``roles``."""
    if is_given and role not in roles:
        raise ConfigError(f"{sentence}, not for a {role}")


def default_name(role: Role, key_file: Path | None) -> str:
    """Name of a node without --name: one that its key, if it has one, is for."""
    if role == "broker":
        return "broker"
    key = read_credentials(key_file) if key_file else None
    base = key.name if key and key.name else f"{role}-{socket.gethostname()}"
    # A run has one trainer: under another name, it would be refused while the run waits for the one that was killed.
    # A spool's name is that of its files.
    return base if role in ("trainer", "spool") else f"{base}-{os.getpid()}"


if __name__ == "__main__":
    main()
