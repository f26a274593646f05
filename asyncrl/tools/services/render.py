"""
Texts of the service files, from the templates in this folder and the settings of one machine. Pure: nothing is written.

    templates/systemd/, templates/supervisord/  +  `Services`  ─▶  {file name: text}

``conf/`` in the repository holds the same files for `SYSTEMD` and `SUPERVISORD`, the settings below.
"""

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Literal

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.runtime.metrics_server import OPEN_VARIABLE

Manager = Literal["systemd", "supervisord"]
Devices = Literal["none", "gpu", "ascend"]

ROLES = ("broker", "reward", "trainer", "rollout")
"""Roles of a run on one machine."""
ALL_ROLES = ("broker", "spool", "reward", "trainer", "rollout")
WITH_DEVICES = ("trainer", "rollout")
STATE = "/var/lib/asyncrl"
"""Folder that systemd makes for ``StateDirectory=asyncrl``."""
HOMES = ("/home/", "/root/", "/run/user/")
"""Folders that ``ProtectHome=yes`` hides."""
PLAIN = re.compile(r"[A-Za-z0-9_./:@+,=~-]+")
"""Texts that mean themselves in a unit file, in supervisord's file and in a shell."""
ADDRESS = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+|\*):[0-9]+")
"""Addresses without an IPv6 zone, whose percent sign both managers would expand."""
HOST = "%(host_node_name)s"
"""Name of this machine in supervisord's file; names of nodes are unique in a run."""
LOCAL = "IPAddressDeny=any\nIPAddressAllow=localhost"
OPEN = "# No IPAddressDeny=: other machines connect, and the keys of their nodes decide who may join."
BECOMES = 'user={user}\nenvironment=HOME="{home}",USER="{user}"\n'
LOCAL_KEY = "# A broker with --keys leaves a key for the nodes of its machine in the run directory."
EXPANSIONS = re.compile(r"%\(ENV_[A-Z_]+\)s")
"""Environment variables in supervisord's file."""


class Services(Struct, frozen=True, kw_only=True):
    """Settings of the services of one machine."""

    program: str
    """Path of asyncrl-node."""
    python: tuple[str, ...] = ()
    """Real paths of its Python environment and interpreter."""
    config: str
    """Run file."""
    run_dir: str
    """Directory of the run, which the broker creates."""
    address: str
    """Address of the broker. On the broker's machine, the one that it listens on."""
    secret: str
    """File of the run's secret."""
    key: str = ""
    """Key file of the nodes of this machine; empty: they use the secret."""
    key_name: str = ""
    """Name of the key, with which the names of its nodes begin."""
    keys: str = ""
    """Folder with the broker's key and its allow-list. Broker only."""
    spool_dir: str = ""
    """Folder of the spool. Spool only."""
    directory: str
    """Working directory of every service; relative paths of the run file start there."""
    logs: str = ""
    """Folder for the logs of the services. supervisord only."""
    control: str = ""
    """Folder for the socket, the process id and the log of supervisord: the same for every run."""
    home: str = ""
    """Home of ``user``, which supervisord then becomes; empty: it stays the user that starts it."""
    user: str = "asyncrl"
    group: str = "asyncrl"
    roles: tuple[str, ...] = ROLES
    replicas: str = "auto"
    """Rollouts on this machine, as in ``--replicas``."""
    rollout_threads: int = 1
    trainer_threads: int = 1
    devices: Devices = "none"
    metrics: Mapping[str, Mapping[str, str]] = {}
    """Environment variables of each role for its metrics."""


SYSTEMD = Services(
    program="/opt/asyncrl/.venv/bin/asyncrl-node",
    config="/etc/asyncrl/run.toml",
    run_dir=f"{STATE}/run",
    address="tcp://127.0.0.1:5570",
    secret=f"{STATE}/run/secret",
    directory=STATE,
)
"""Settings of conf/systemd."""

SUPERVISORD = Services(
    program="%(ENV_ASYNCRL_BIN)s/asyncrl-node",
    config="%(ENV_ASYNCRL_CONFIG)s",
    run_dir="%(ENV_ASYNCRL_RUN_DIR)s",
    address="%(ENV_ASYNCRL_ADDRESS)s",
    secret="%(ENV_ASYNCRL_RUN_DIR)s/secret",
    directory="%(ENV_ASYNCRL_DIRECTORY)s",
    logs="%(ENV_ASYNCRL_LOGS)s",
    control="%(ENV_ASYNCRL_LOGS)s",
)
"""Settings of conf/supervisord, all from environment variables."""


def render(manager: Manager, services: Services) -> dict[str, str]:
    """
    Text of each file, by its path below the folder of the service manager.

    Raises:
        ConfigError: A path has a character that the files would have to quote.
    """
    _require_plain(services)
    return _systemd(services) if manager == "systemd" else _supervisord(services)


def _systemd(services: Services) -> dict[str, str]:
    nodes = [role for role in ALL_ROLES if role in services.roles and role != "broker"]
    units = ["asyncrl-broker.service"] if "broker" in services.roles else []
    values = _values(services) | {"UNITS": " ".join([*units, *(f"asyncrl@{role}.service" for role in nodes)])}
    for role in ALL_ROLES:
        variables = services.metrics.get(role, {})
        values[f"METRICS_{role.upper()}"] = "".join(f"Environment={name}={it}\n" for name, it in variables.items())
    values["SANDBOX"] = _filled("systemd/sandbox.conf", values).rstrip()
    found = {name: _filled(f"systemd/{name}", values) for name in units}
    if nodes:
        found["asyncrl@.service"] = _filled("systemd/asyncrl@.service", values)
    for role in nodes:
        folder = f"asyncrl@{role}.service.d"
        found[f"{folder}/10-role.conf"] = _filled(f"systemd/role-{role}.conf", values)
        if services.devices != "none" and role in WITH_DEVICES:
            found[f"{folder}/20-devices.conf"] = _template(f"systemd/devices-{services.devices}.conf")
    makes_user = () if services.user == "root" else ("asyncrl.sysusers",)
    for name in ("asyncrl.target", *makes_user, "asyncrl.tmpfiles"):
        found[name] = _filled(f"systemd/{name}", values)
    return found


def _supervisord(services: Services) -> dict[str, str]:
    """One file, without the programs of other roles, and the folder of the operator's own files."""
    values = _values(services)
    for role in ALL_ROLES:
        variables = services.metrics.get(role, {})
        values[f"METRICS_{role.upper()}"] = "".join(f',{name}="{it}"' for name, it in variables.items())
    text = _filled("supervisord/asyncrl.conf", values)
    head, *programs = re.split(r"(?<=\n\n)(?=(?:;[^\n]*\n)*\[program:)", text)
    names = [program.partition("[program:")[2].partition("]")[0] for program in programs]
    kept = [program for name, program in zip(names, programs, strict=True) if name in services.roles]
    programs_text = "".join([head, *kept]).rstrip() + "\n"
    return {"asyncrl.conf": programs_text, "asyncrl.d/00-about.conf": _template("supervisord/about.conf")}


def _values(services: Services) -> dict[str, str]:
    run_folder = str(PurePosixPath(services.run_dir).parent)
    paths = (services.program, *services.python, services.config, services.directory, services.keys, f"{run_folder}/")
    by_variables = services.program.startswith("%(")
    return {
        "PROGRAM": services.program,
        "CONFIG": services.config,
        "RUN_DIR": services.run_dir,
        "ADDRESS": services.address,
        "SPOOL_DIR": services.spool_dir,
        "DIRECTORY": services.directory,
        "LOGS": services.logs,
        "CONTROL": services.control,
        "BECOMES": BECOMES.format(user=services.user, home=services.home) if services.home else "",
        "USER": services.user,
        "GROUP": services.group,
        "REPLICAS": services.replicas,
        "ROLLOUT_THREADS": str(services.rollout_threads),
        "TRAINER_THREADS": str(services.trainer_threads),
        "PROTECT_HOME": "read-only" if any(path.startswith(HOMES) for path in paths) else "yes",
        "STATE_DIRECTORY": "StateDirectory=asyncrl\nStateDirectoryMode=0700\n" if run_folder == STATE else "",
        "WRITABLE": run_folder,
        "VARIABLES": _template("supervisord/variables.conf") if by_variables else "",
        **_access(services),
    }


def _access(services: Services) -> dict[str, str]:
    """Values that say how the services reach the broker, under which names, and with which keys."""
    is_broker = "broker" in services.roles
    if services.key:
        credential = f"LoadCredential=asyncrl.key:{services.key}"
    else:
        credential = LOCAL_KEY if services.keys else f"LoadCredential=asyncrl.secret:{services.secret}"
    reads_secret = is_broker or not services.key
    return {
        "JOIN": f"--run-dir {services.run_dir}" if is_broker else f"--broker {services.address}",
        "NODE": f"{services.key_name}-%i" if services.key else "%i-%H",
        "BEFORE": f"{services.key_name}-" if services.key else "",
        "AFTER": "" if services.key else "-0" if is_broker else f"-{HOST}",
        "AFTER_ROLLOUT": "" if services.key or is_broker else f"-{HOST}",
        "SECRET": services.secret,
        "SPOOL_FOLDER": f"d {services.spool_dir} 0700 {services.user} {services.group}\n" if services.spool_dir else "",
        "SECRET_FILE": f"z {services.secret} 0600 {services.user} {services.group}\n" if reads_secret else "",
        "CREDENTIAL": credential,
        "KEY": f',ASYNCRL_KEY_FILE="{services.key}"' if services.key else "",
        "KEYS": f" --keys {services.keys}" if services.keys else "",
        "IP_ACCESS": OPEN if services.keys or OPEN_VARIABLE in services.metrics.get("broker", {}) else LOCAL,
    }


def _filled(name: str, values: Mapping[str, str]) -> str:
    return re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], _template(name))


def _template(name: str) -> str:
    return files("asyncrl.tools.services").joinpath("templates", *name.split("/")).read_text(encoding="utf-8")


def _require_plain(services: Services) -> None:
    for field in (
        "program",
        "config",
        "run_dir",
        "secret",
        "key",
        "key_name",
        "keys",
        "spool_dir",
        "directory",
        "logs",
        "control",
        "home",
        "user",
        "group",
        "replicas",
    ):
        text = getattr(services, field)
        if text and not PLAIN.fullmatch(EXPANSIONS.sub("x", text)):
            raise ConfigError(
                f"the {field.replace('_', ' ')} is {text!r}: service files can hold letters, digits and _./:@+,=~- "
                "only; choose another path"
            )
    if services.address and not ADDRESS.fullmatch(EXPANSIONS.sub("tcp://x:1", services.address)):
        raise ConfigError(f"the address is {services.address!r}: service files can hold tcp://HOST:PORT only")
