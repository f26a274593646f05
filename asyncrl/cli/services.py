"""
`asyncrl services install`: service files for this machine, and the folders and the secret that they name; `uninstall`
removes the files.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from asyncrl.cli.parts import report_errors, together
from asyncrl.config.config import Config
from asyncrl.config.run_file import load_config
from asyncrl.config.sections.rollout import Rollout
from asyncrl.config.sections.trainer import Trainer
from asyncrl.errors import ConfigError
from asyncrl.files.paths import absolute
from asyncrl.records.run_directory import RunDirectory
from asyncrl.runtime.metrics_server import metrics_options
from asyncrl.terminal import echo
from asyncrl.tools.cluster.probe import read_key_state
from asyncrl.tools.services.install import (
    CONTROL,
    SYSTEM_UNITS,
    ServiceUser,
    closed_folder,
    find_installed,
    find_owner,
    last_steps,
    make_folders,
    make_secret,
    metrics_by_role,
    next_steps,
    problems,
    remove,
    require_stopped,
    to_write,
    told,
    write_files,
)
from asyncrl.tools.services.render import ALL_ROLES, ROLES, WITH_DEVICES, Devices, Manager, Services, render
from asyncrl.wire.addresses import check_address
from asyncrl.wire.keys.key_folder import KeyFolder

# ── command ───────────────────────────────────────────────────────────────────────────────────

PATH = click.Path(path_type=Path)
LOCAL_BROKER = "tcp://127.0.0.1:5570"
MAX_PID = 4194304
"""supervisord appends its process id to the path while it binds."""
LOOPBACK = ("tcp://127.", "tcp://localhost:", "tcp://[::1]:")


@click.group()
def services() -> None:
    """Run the roles as services of systemd or supervisord."""


manager_options = together(
    click.option("--supervisord", "is_supervisord", is_flag=True, help="A file for supervisord."),
    click.option("--systemd", "is_systemd", is_flag=True, help="Units for systemd."),
)
folder_option = click.option(
    "--to", "folder", type=PATH, metavar="DIR", help="Folder of the files.  [default: /etc/systemd/system, or this one]"
)


@services.command()
@manager_options
@click.option("--config", "config_path", type=PATH, metavar="CONFIG", help="Run file. The broker needs it.")
@click.option("--run-dir", type=PATH, metavar="DIR", help="Run directory.  [default: run.dir/NAME, as in asyncrl run]")
@click.option(
    "--broker", "given_address", help=f"Address of the broker, which listens on it.  [default: {LOCAL_BROKER}]"
)
@click.option("--roles", multiple=True, default=ROLES, metavar="ROLE,...", help="Roles of this machine; repeatable.")
@click.option(
    "--replicas",
    metavar="auto|N",
    help="Rollouts on this machine.  [default: auto with devices; else rollout.replicas, or 1 without --config]",
)
@click.option("--devices", type=click.Choice(["none", "gpu", "ascend"]), help="[default: those of this machine]")
@click.option(
    "--secret", type=PATH, metavar="FILE", help="The run's secret. systemd only.  [default: DIR/secret of --run-dir]"
)
@click.option("--key", type=PATH, metavar="FILE", help="Key of the nodes of this machine, in place of the secret.")
@click.option("--keys", type=PATH, metavar="DIR", help="Folder of the broker's key and allow-list. Broker only.")
@click.option("--dir", "spool_dir", type=PATH, metavar="DIR", help="Folder of the spool. Spool only.")
@click.option("--user", metavar="NAME", help="User of the services.  [default: the current user]")
@click.option(
    "--metrics", metavar="[HOST:]PORT", help="Metrics of the first service; each further one has the next port."
)
@click.option("--metrics-open", is_flag=True, help="Let other machines read --metrics, without a key.")
@folder_option
@click.option("--force", is_flag=True, help="Also replace files that were changed by hand.")
@report_errors
def install(
    *,
    is_systemd: bool,
    is_supervisord: bool,
    config_path: Path | None,
    run_dir: Path | None,
    given_address: str | None,
    roles: tuple[str, ...],
    replicas: str | None,
    devices: Devices | None,
    secret: Path | None,
    key: Path | None,
    keys: Path | None,
    spool_dir: Path | None,
    user: str | None,
    metrics: str | None,
    metrics_open: bool,
    folder: Path | None,
    force: bool,
) -> None:
    """
    Write the service files of this machine, and check them.

    A machine with the role broker keeps the run; on others, --broker says where it is. An address that is not a
    loopback address needs keys: --keys on the broker's machine, --key on the others.

    The services use the Python environment of this command and start in the current folder. The secret of the run and
    the folders are created. A second time, only what differs is written; files changed by hand are kept.

    \b
    Example:
      asyncrl services install --systemd --config my.toml --user asyncrl
      asyncrl services install --systemd --roles rollout \\
        --broker tcp://10.0.0.1:5570 --key node.key --run-dir runs/my
      systemctl enable --now asyncrl.target
    """
    manager = _manager(is_systemd=is_systemd, is_supervisord=is_supervisord)
    named = _roles(roles)
    if key and given_address is None:
        raise ConfigError(
            f"--key {key} is for the broker of another machine: give its address, --broker tcp://HOST:PORT"
        )
    address = given_address or LOCAL_BROKER
    _require_access(address, named, key=key, keys=keys, spool_dir=spool_dir)
    config, devices = load_config(config_path) if config_path else None, devices or devices_here(Path("/dev"))
    run_dir = _run_dir(run_dir, config_path, config, named)
    secret = absolute(secret or run_dir / "secret")
    folder = _folder(folder, manager)
    owner = find_owner(user, is_made_later=manager == "systemd")
    elsewhere = _elsewhere(config, named) if config else []
    serving = metrics_options(metrics, is_open=metrics_open)
    python = tuple(os.path.realpath(path) for path in (sys.prefix, sys.executable))  # often links into a home
    logs, control = run_dir / "logs", folder / CONTROL
    if manager == "supervisord":
        check_address(f"ipc://{control}/ctl.sock.{MAX_PID}", "the socket of supervisord, in the folder of --to,")
    is_counted, replicas = replicas is not None, _replicas(config, devices) if replicas is None else _number(replicas)
    texts = render(
        manager,
        Services(
            program=_program(),
            python=python,
            config=str(absolute(config_path)) if config_path else "",
            run_dir=str(run_dir),
            address=address,
            secret=str(secret),
            key=str(absolute(key)) if key else "",
            key_name=_key_name(key, named) if key else "",
            keys=str(absolute(keys)) if keys else "",
            spool_dir=str(absolute(spool_dir)) if spool_dir else "",
            directory=str(Path.cwd()),
            logs=str(logs) if manager == "supervisord" else "",
            control=str(control) if manager == "supervisord" else "",
            user=owner.name,
            group=owner.group,
            home=owner.home if os.geteuid() == 0 else "",
            roles=named,
            replicas=replicas,
            rollout_threads=(config.rollout if config else Rollout()).threads,
            trainer_threads=(config.trainer if config else Trainer()).threads,
            devices=devices,
            metrics=metrics_by_role(serving, named),
        ),
    )
    changed = to_write(manager, folder, texts, force=force)
    is_replaced = any(path.exists() for path in changed)
    if manager == "supervisord":  # Its checker looks for them.
        make_folders([logs, control], owner)
    if found := problems(manager, texts):
        raise ConfigError("\n".join(["the service manager refuses these files, and none was written:", *found]))
    make_folders([run_dir, *([absolute(spool_dir)] if spool_dir else [])], owner)
    if manager == "systemd" and ("broker" in named or not key):  # LoadCredential= needs it before the broker starts.
        make_secret(secret, owner)
    write_files(changed)
    for path in changed:
        echo(f"wrote {path}")
    if not changed:
        echo(f"nothing to change in {folder}")
    counted = None if is_counted or config else replicas
    notes = _notes(named, owner, python, config_path, is_user_named=user is not None, replicas=counted)
    for note in (*elsewhere, *_over(run_dir, config), *notes):
        echo(f"note     {note}")
    if serving:
        echo(f"metrics  {told(serving, named)}")
    echo("\n".join(next_steps(manager, folder, owner, is_replaced=is_replaced, logs=logs)))


@services.command()
@manager_options
@folder_option
@click.option("--force", is_flag=True, help="Also remove files that were changed by hand.")
@report_errors
def uninstall(*, is_systemd: bool, is_supervisord: bool, folder: Path | None, force: bool) -> None:
    """
    Remove the files that install wrote.

    And those that its supervisord wrote. Refuses while the services run. Files of your own beside them stay, and so do
    the run, its secret, logs and keys: what there is of them is named.

    \b
    Example:
      systemctl disable --now asyncrl.target && \\
        asyncrl services uninstall --systemd
      supervisorctl -c services/asyncrl.conf shutdown && \\
        asyncrl services uninstall --supervisord --to services
    """
    manager = _manager(is_systemd=is_systemd, is_supervisord=is_supervisord)
    folder = _folder(folder, manager)
    found = find_installed(manager, folder, force=force)
    require_stopped(manager, folder)
    remove(found)
    for path in (*found.written, *found.controls):
        echo(f"removed  {path}")
    for path, reason in found.kept.items():
        echo(f"kept     {path}: {reason}")
    if not found.written:
        echo(f"nothing of `asyncrl services install --{manager}` in {folder}; --to names another folder")
    for step in last_steps(manager, folder):
        echo(step)


def _manager(*, is_systemd: bool, is_supervisord: bool) -> Manager:
    if is_systemd == is_supervisord:
        raise click.UsageError("give --supervisord or --systemd, one of the two: a machine's services have one manager")
    return "systemd" if is_systemd else "supervisord"


def _folder(given: Path | None, manager: Manager) -> Path:
    return absolute(given or (SYSTEM_UNITS if manager == "systemd" else Path()))


def _notes(
    roles: tuple[str, ...],
    owner: ServiceUser,
    python: tuple[str, ...],
    config_path: Path | None,
    *,
    is_user_named: bool,
    replicas: str | None,
) -> Iterator[str]:
    """Sentences on what was chosen; ``replicas`` is their number if neither an option nor a run file says it."""
    if owner.name == "root" and not is_user_named:
        yield "the services run as root; --user NAME gives them a user of their own"
    if "rollout" in roles and replicas:
        yield f"--replicas {replicas} on this machine, where there is no --config with rollout.replicas"
    if config_path and "broker" not in roles:
        yield (
            f"of {config_path} this machine takes run.dir, run.name, rollout.replicas, rollout.threads and "
            "trainer.threads only; its nodes get all else from the broker"
        )
    if closed := next(filter(None, (closed_folder(Path(path), owner) for path in python)), None):
        yield (
            f"{owner.name} cannot enter {closed}, where the Python of this command is: give --user another user, or "
            "install asyncrl with a Python outside of it"
        )


def _over(run_dir: Path, config: Config | None) -> Iterator[str]:
    """A sentence on a run that is complete, so that its services have nothing to do; nothing of another."""
    summary = RunDirectory(run_dir).finished_summary()
    if summary and config and config.run.steps <= summary.steps_planned and config.run.stop_when in ("", summary.goal):
        yield (
            f"the run in {run_dir} is complete ({summary.steps} steps{summary.goal_note}), so its services end at "
            "once: raise run.steps to train it longer, or give a new run another run.name or --run-dir"
        )


def _program() -> str:
    program = Path(sys.executable).with_name("asyncrl-node")
    if not os.access(program, os.X_OK):
        raise ConfigError(f"{program} is missing: install asyncrl into the environment of {sys.executable}")
    return str(program)


def _roles(given: tuple[str, ...]) -> tuple[str, ...]:
    named = {role.strip() for text in given for role in text.split(",")}
    if unknown := sorted(named - set(ALL_ROLES)):
        raise ConfigError(f"--roles has {', '.join(map(repr, unknown))}: expected some of {', '.join(ALL_ROLES)}")
    return tuple(role for role in ALL_ROLES if role in named)


def _key_name(key: Path, roles: tuple[str, ...]) -> str:
    """Name of a key for the nodes of this machine."""
    state = read_key_state(absolute(key))
    if state.problem:
        raise ConfigError(f"--key {key}: {state.problem}")
    if others := state.others(list(roles)):
        raise ConfigError(f"--key {key} is for {', '.join(state.roles)}, not for {', '.join(others)}: give another key")
    return state.name


def _run_dir(given: Path | None, config_path: Path | None, config: Config | None, roles: tuple[str, ...]) -> Path:
    """Folder of the run on this machine."""
    if "broker" in roles and config_path is None:
        raise ConfigError("--config CONFIG is missing: the broker needs the run's configuration")
    if given is None and config and config_path:
        given = Path(config.run.dir, config.run.name or config_path.stem)
    if given is None:
        raise ConfigError("--config and --run-dir are missing: give one of the two, for the folder of this machine")
    return absolute(given)


def _elsewhere(config: Config, roles: tuple[str, ...]) -> list[str]:
    """
    Sentences about models that the machine of the broker lacks, as may be while no other role here loads them.

    Raises `ConfigError` for a path that its services would end with.
    """
    from asyncrl.runtime.model_files import models_elsewhere, require_data

    if "broker" not in roles:
        return []
    require_data(config)
    missing = models_elsewhere(config)
    if missing and any(role in WITH_DEVICES for role in roles):
        raise ConfigError(missing[0])
    return missing


def _replicas(config: Config | None, devices: Devices) -> str:
    """Number of rollouts on CPUs, 1 if no run file says it; on devices, as many as fit."""
    return (str(config.rollout.replicas) if config else "1") if devices == "none" else "auto"


def _number(replicas: str) -> str:
    if replicas != "auto" and not (replicas.isdecimal() and int(replicas)):
        raise ConfigError(f"--replicas is {replicas!r}: expected auto or a number of at least 1")
    return replicas


def _require_access(
    address: str, roles: tuple[str, ...], *, key: Path | None, keys: Path | None, spool_dir: Path | None
) -> None:
    """Raise `ConfigError` unless address, keys and roles belong together."""
    is_broker = "broker" in roles
    if not address.startswith("tcp://"):
        raise ConfigError(f"--broker is {address!r}: expected tcp://HOST:PORT")
    check_address(address, "--broker", binds=is_broker)
    if keys and not is_broker:
        raise ConfigError("--keys is for the machine of the broker; the nodes of other machines have --key FILE")
    if not address.startswith(LOOPBACK) and not (keys if is_broker else key):
        needed = "--keys DIR, which `asyncrl keys init --keys DIR` makes" if is_broker else "--key FILE"
        if key:
            needed += ", or, where --key FILE is for nodes without the broker, name them with --roles ROLE,..."
        raise ConfigError(f"--broker {address} is not a loopback address: its connections need keys; give {needed}")
    if keys and not keys.is_dir():
        raise ConfigError(f"--keys {keys}: there is no such folder; make it with `asyncrl keys init --keys {keys}`")
    if keys:
        KeyFolder(keys).require_private()
    if ("spool" in roles) != bool(spool_dir):
        raise ConfigError("--dir DIR and the role spool belong together: give both, or none")


def devices_here(dev: Path) -> Devices:
    """Kind of accelerator that has device files below ``dev``."""
    if (dev / "nvidiactl").exists():
        return "gpu"
    return "ascend" if (dev / "davinci_manager").exists() else "none"
