"""`asyncrl services install`: service files for this machine, and the folders and the secret that they name."""

import getpass
import grp
import os
import pwd
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from asyncrl.cli.services.install import problems, write_files
from asyncrl.cli.services.render import ALL_ROLES, ROLES, Devices, Manager, Services, render
from asyncrl.cli.terminal import report_errors
from asyncrl.config.addresses import check_address
from asyncrl.config.run_file import load_config
from asyncrl.config.sections import Config, Rollout, Trainer
from asyncrl.errors import ConfigError
from asyncrl.files.secret_file import new_secret, write_secret
from asyncrl.node.machine.cluster.key_state import read_key_state

PATH = click.Path(path_type=Path)
MAX_PID = 4194304
"""supervisord appends its process id to the path while it binds."""
LOOPBACK = ("tcp://127.", "tcp://localhost:", "tcp://[::1]:")
SYSTEM_UNITS = Path("/etc/systemd/system")


@click.group()
def services() -> None:
    """Run the roles as services of systemd or supervisord."""


@services.command()
@click.option("--systemd", "manager", flag_value="systemd", required=True, help="Write units for systemd.")
@click.option("--supervisord", "manager", flag_value="supervisord", help="Write a file for supervisord.")
@click.option("--config", "config_path", type=PATH, metavar="CONFIG", help="Run file. The broker needs it.")
@click.option("--run-dir", type=PATH, metavar="DIR", help="Run directory.  [default: run.dir/NAME, as in asyncrl run]")
@click.option("--broker", "address", default="tcp://127.0.0.1:5570", help="Address of the broker, which listens on it.")
@click.option("--roles", default=",".join(ROLES), metavar="ROLE,...", help="Roles of this machine.")
@click.option("--replicas", metavar="auto|N", help="Rollouts on this machine.  [default: rollout.replicas]")
@click.option("--devices", type=click.Choice(["none", "gpu", "ascend"]), help="[default: those of this machine]")
@click.option(
    "--secret", type=PATH, metavar="FILE", help="The run's secret. systemd only.  [default: DIR/secret of --run-dir]"
)
@click.option("--key", type=PATH, metavar="FILE", help="Key of the nodes of this machine, in place of the secret.")
@click.option("--keys", type=PATH, metavar="DIR", help="Folder of the broker's key and allow-list. Broker only.")
@click.option("--dir", "spool_dir", type=PATH, metavar="DIR", help="Folder of the spool. Spool only.")
@click.option("--user", metavar="NAME", help="User of the services. systemd only.  [default: the current user]")
@click.option("--to", "folder", type=PATH, metavar="DIR", help="[default: /etc/systemd/system, or this folder]")
@click.option("--force", is_flag=True, help="Also replace files that were changed by hand.")
@report_errors
def install(
    *,
    manager: Manager,
    config_path: Path,
    run_dir: Path | None,
    address: str,
    roles: str,
    replicas: str | None,
    devices: Devices | None,
    secret: Path | None,
    key: Path | None,
    keys: Path | None,
    spool_dir: Path | None,
    user: str | None,
    folder: Path | None,
    force: bool,
) -> None:
    """
    Write the files of the services for this machine, and check them.

    A machine with the role broker keeps the run; on others, --broker says where it is. An address that is not a
    loopback address needs keys: --keys on the broker's machine, --key on the others.

    The services use the Python environment of this command and start in the current folder. The secret of the run and
    the folders are created. A second time, only what differs is written; files changed by hand are kept.

    \b
    Example:
      asyncrl services install --systemd --config my.toml --user asyncrl
      asyncrl services install --systemd --roles rollout --broker tcp://10.0.0.1:5570 --key node.key --run-dir runs/my
      systemctl enable --now asyncrl.target
    """
    named = _roles(roles)
    _require_access(address, named, key=key, keys=keys, spool_dir=spool_dir)
    config, devices = load_config(config_path) if config_path else None, devices or _devices_here(Path("/dev"))
    run_dir = _run_dir(run_dir, config_path, config, named)
    secret = (secret or run_dir / "secret").absolute()
    folder = (folder or (SYSTEM_UNITS if manager == "systemd" else Path())).absolute()
    owner = _owner(user)
    logs = run_dir / "logs"
    if manager == "supervisord":
        check_address(f"ipc://{logs}/ctl.sock.{MAX_PID}", "the socket of supervisord")
    texts = render(
        manager,
        Services(
            program=_program(),
            config=str(config_path.absolute()) if config_path else "",
            run_dir=str(run_dir),
            address=address,
            secret=str(secret),
            key=str(key.absolute()) if key else "",
            key_name=_key_name(key, named) if key else "",
            keys=str(keys.absolute()) if keys else "",
            spool_dir=str(spool_dir.absolute()) if spool_dir else "",
            directory=str(Path.cwd()),
            logs=str(logs) if manager == "supervisord" else "",
            user=owner.pw_name,
            group=grp.getgrgid(owner.pw_gid).gr_name,
            roles=named,
            replicas=_replicas(config, devices) if replicas is None else _number(replicas),
            rollout_threads=(config.rollout if config else Rollout()).threads,
            trainer_threads=(config.trainer if config else Trainer()).threads,
            devices=devices,
        ),
    )
    changed = write_files(folder, texts, force=force)
    _make_folders([run_dir, logs], owner)
    if spool_dir:
        _make_folders([spool_dir.absolute()], owner)
    if manager == "systemd" and ("broker" in named or not key):  # LoadCredential= needs it before the broker starts.
        _make_secret(secret, owner)
    for path in changed:
        click.echo(f"wrote {path}")
    if not changed:
        click.echo(f"nothing to change in {folder}")
    if found := problems(manager, folder, texts):
        raise ConfigError("\n".join(["the service manager refuses these files:", *found]))
    click.echo("\n".join(_next_commands(manager, folder, owner.pw_name)))


def _program() -> str:
    program = Path(sys.executable).with_name("asyncrl-node")
    if not os.access(program, os.X_OK):
        raise ConfigError(f"{program} is missing: install asyncrl into the environment of {sys.executable}")
    return str(program)


def _owner(user: str | None) -> pwd.struct_passwd:
    name = user or getpass.getuser()
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(
            f"--user {name!r}: there is no such user; create it, for example with useradd --system {name}"
        ) from None


def _roles(text: str) -> tuple[str, ...]:
    named = {role.strip() for role in text.split(",")}
    if unknown := sorted(named - set(ALL_ROLES)):
        raise ConfigError(f"--roles has {', '.join(map(repr, unknown))}: expected some of {', '.join(ALL_ROLES)}")
    return tuple(role for role in ALL_ROLES if role in named)


def _key_name(key: Path, roles: tuple[str, ...]) -> str:
    """Name of a key for the nodes of this machine."""
    state = read_key_state(key.absolute())
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
    return given.absolute()


def _replicas(config: Config | None, devices: Devices) -> str:
    """Number of rollouts on CPUs; on devices, as many as fit."""
    return str((config.rollout if config else Rollout()).replicas) if devices == "none" else "auto"


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
        raise ConfigError(f"--broker {address} is not a loopback address: its connections need keys; give {needed}")
    if keys and not keys.is_dir():
        raise ConfigError(f"--keys {keys}: there is no such folder; make it with `asyncrl keys init --keys {keys}`")
    if ("spool" in roles) != bool(spool_dir):
        raise ConfigError("--dir DIR and the role spool belong together: give both, or none")


def _devices_here(dev: Path) -> Devices:
    """Kind of accelerator that has device files below ``dev``."""
    if (dev / "nvidiactl").exists():
        return "gpu"
    return "ascend" if (dev / "davinci_manager").exists() else "none"


def _make_folders(folders: list[Path], owner: pwd.struct_passwd) -> None:
    """Make what is missing of these folders and their parents; it belongs to ``owner``."""
    for folder in folders:
        for path in reversed([path for path in (folder, *folder.parents) if not path.is_dir()]):
            with _creating(path):
                path.mkdir(mode=0o700)
                _give(path, owner)


def _make_secret(path: Path, owner: pwd.struct_passwd) -> None:
    if not path.exists():
        with _creating(path):
            write_secret(path, new_secret())
            _give(path, owner)


def _give(path: Path, owner: pwd.struct_passwd) -> None:
    if os.geteuid() == 0:
        os.chown(path, owner.pw_uid, owner.pw_gid)


@contextmanager
def _creating(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot create {path}: {error.strerror}") from error


def _next_commands(manager: Manager, folder: Path, user: str) -> list[str]:
    if manager == "supervisord":
        supervisord = shutil.which("supervisord", path=str(Path(sys.executable).parent)) or "supervisord"
        path = folder / "asyncrl.conf"
        return [
            f"start    {supervisord} -c {path}",
            f"status   {supervisord.removesuffix('d')}ctl -c {path} status",
        ]
    copy = [] if folder == SYSTEM_UNITS else [f"copy     sudo cp -r {folder}/asyncrl* {SYSTEM_UNITS}/"]
    return [
        *copy,
        "start    sudo systemctl daemon-reload && sudo systemctl enable --now asyncrl.target",
        "status   systemctl status 'asyncrl*'",
        "log      journalctl -u 'asyncrl*' -f",
    ]
