"""
Writes service files without losing what somebody changed in them by hand, has the service manager check them, and
removes them again.

The first line of a written file names a checksum of the rest. A file whose checksum differs was changed by hand.
"""

import getpass
import grp
import hashlib
import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.files.access import new_secret, write_secret
from asyncrl.files.atomic import replacing
from asyncrl.runtime.metrics_server import MetricsOptions
from asyncrl.tools.services.render import Manager

MARK = "# Written by `asyncrl services install`; checksum of the rest: "
CHECK_S = 60.0
KEPT: Mapping[Manager, str] = {
    "systemd": "a drop-in, such as UNIT.d/50-local.conf,",
    "supervisord": "a file of its folder asyncrl.d, such as asyncrl.d/local.conf,",
}
"""Place for the changes of an operator, which no install replaces."""
CONTROL = "supervisord"
"""Folder for the socket, the process id and the log of supervisord, beside its file."""


def to_write(manager: Manager, folder: Path, texts: Mapping[str, str], *, force: bool) -> dict[Path, str]:
    """
    The files below ``folder`` that differ from ``texts``, with their new text.

    Raises:
        ConfigError: A file was changed by hand, or written by hand, and ``force`` is false; or it cannot be read.
    """
    paths = {folder / name: f"{MARK}{_checksum(text)}\n{text}" for name, text in texts.items()}
    changed = {path: text for path, text in paths.items() if _read(path) != text}
    edited = [path for path in changed if _is_edited(_read(path))]
    if edited and not force:
        raise ConfigError(
            f"changed by hand: {', '.join(map(str, edited))}; keep the changes in {KEPT[manager]} then replace these "
            "files with --force"
        )
    return changed


def write_files(changed: Mapping[Path, str]) -> None:
    """Write the files, each at once; raises `ConfigError` if one cannot be written."""
    for path, text in changed.items():
        try:
            with replacing(path) as unfinished:
                unfinished.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}; choose a folder with --to") from error


def problems(manager: Manager, texts: Mapping[str, str]) -> list[str] | None:
    """Sentences of the service manager's own checker about files with ``texts``; None if it is not installed here."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files({folder / file: text for file, text in texts.items()})
        if manager == "systemd":
            found = _systemd_problems(folder, [file for file in texts if file.endswith((".service", ".target"))])
        else:
            found = _supervisord_problems(_conf(folder))
        return found and [sentence.replace(f"{folder}/", "") for sentence in found]


def _systemd_problems(folder: Path, units: list[str]) -> list[str] | None:
    if not (checker := shutil.which("systemd-analyze")):
        return None
    command = [checker, "verify", "--man=no", *(str(folder / unit) for unit in units)]
    # The trailing colon adds the folders of the machine; units that only the target names are found in this one.
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=CHECK_S, check=False)
    return [line for line in done.stderr.splitlines() if "asyncrl" in line]


def _supervisord_problems(path: Path) -> list[str] | None:
    if find_spec("supervisor") is None:
        return None
    from supervisor.options import ServerOptions

    options = ServerOptions()
    options.configfile = str(path)
    try:
        options.process_config(do_usage=False)
    except ValueError as error:
        return [f"{path}: {error}"]
    return []


def _is_edited(text: str | None) -> bool:
    """True unless there is no file, or `write_files` wrote this text."""
    if text is None:
        return False
    mark, _, rest = text.partition("\n")
    return mark != MARK + _checksum(rest)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


# ── metrics ports ─────────────────────────────────────────────────────────────────────────────
# Metrics of the services of one machine: each has a port of its own, one after the other in the order of the roles.


def told(options: MetricsOptions, roles: Sequence[str]) -> str:
    """Address of each of ``roles`` in words, and the first port of the replicas."""
    addresses = [f"{role} {options.of_child(number).address}" for number, role in enumerate(roles)]
    if options.port and "rollout" in roles:
        addresses.append(f"its replicas from {options.port + len(roles)} on")
    return ", ".join(addresses)


def metrics_by_role(options: MetricsOptions | None, roles: Sequence[str]) -> dict[str, dict[str, str]]:
    """
    Environment variables for each of ``roles``; none without ``options``, the address of the first.

    Rollouts come last: the process that starts them takes a port, and each of them the next.
    """
    return {role: options.of_child(number).as_variables() for number, role in enumerate(roles)} if options else {}


# ── owner ─────────────────────────────────────────────────────────────────────────────────────
# The user of the services, and the folders and the secret that are made for this user.


class ServiceUser(Struct, frozen=True):
    """User of the services."""

    name: str
    group: str
    home: str = ""
    ids: tuple[int, int] | None = None
    """Numbers of user and group; None if `systemd-sysusers` is still to make the user."""


def find_owner(user: str | None, *, is_made_later: bool) -> ServiceUser:
    """
    The user named ``user``, or the current one.

    Args:
        is_made_later: A user that does not exist is one that the written files have made.

    Raises:
        ConfigError: There is no such user.
    """
    name = user or getpass.getuser()
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        if is_made_later:
            return ServiceUser(name, name)
        raise ConfigError(
            f"--user {name!r}: there is no such user; create it, for example with useradd --system {name}"
        ) from None
    group = grp.getgrgid(found.pw_gid).gr_name
    return ServiceUser(name, group, found.pw_dir, (found.pw_uid, found.pw_gid))


def make_folders(folders: Sequence[Path], owner: ServiceUser) -> None:
    """
    Make what is missing of these folders and their parents; it belongs to ``owner``.

    For a user that does not exist yet, `systemd-tmpfiles` gives the folders away later; others may pass their parents.
    """
    for folder in folders:
        for path in reversed([path for path in (folder, *folder.parents) if not path.is_dir()]):
            with _creating(path):
                path.mkdir(mode=0o700 if owner.ids or path == folder else 0o755)
                _give(path, owner)


def make_secret(path: Path, owner: ServiceUser) -> None:
    """Make the secret of a run, unless there is one."""
    if not path.exists():
        with _creating(path):
            write_secret(path, new_secret())
            _give(path, owner)


def closed_folder(path: Path, owner: ServiceUser) -> Path | None:
    """The first folder on the way to ``path`` whose mode lets ``owner`` not enter it; None if it may enter them all."""
    uid, gid = owner.ids or (-1, -1)
    groups = os.getgrouplist(owner.name, gid) if owner.ids else []
    for folder in reversed(path.parents):
        with suppress(OSError):
            found = folder.stat()
            bit = stat.S_IXUSR if found.st_uid == uid else stat.S_IXGRP if found.st_gid in groups else stat.S_IXOTH
            if uid != 0 and not found.st_mode & bit:
                return folder
    return None


def _give(path: Path, owner: ServiceUser) -> None:
    if os.geteuid() == 0 and owner.ids:
        os.chown(path, *owner.ids)


@contextmanager
def _creating(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot create {path}: {error.strerror}") from error


# ── next steps ────────────────────────────────────────────────────────────────────────────────
# The commands that follow `asyncrl services install`, one line each.

SYSTEM_UNITS = Path("/etc/systemd/system")


def next_steps(manager: Manager, folder: Path, owner: ServiceUser, *, is_replaced: bool, logs: Path) -> list[str]:
    """
    Lines with the commands that start, apply and watch the services in ``folder``.

    ``is_replaced`` is true if files that were there are different now, and may be in use; ``logs`` is the folder for
    the logs of supervisord's services.
    """
    return _systemd(folder, owner, is_replaced) if manager == "systemd" else _supervisord(folder, is_replaced, logs)


def _supervisord(folder: Path, is_replaced: bool, logs: Path) -> list[str]:
    path, control = _conf(folder), _ctl(folder)
    apply = [f"apply    {control} update    (if supervisord runs already)"] if is_replaced else []
    return [f"start    {_daemon()} -c {path}", *apply, f"status   {control} status", f"log      tail -F {logs}/*.log"]


def _ctl(folder: Path) -> str:
    """Command that controls the supervisord of the services in ``folder``."""
    return f"{_daemon().removesuffix('d')}ctl -c {_conf(folder)}"


def _conf(folder: Path) -> Path:
    return folder / "asyncrl.conf"


def _daemon() -> str:
    return shutil.which("supervisord", path=str(Path(sys.executable).parent)) or "supervisord"


def _systemd(folder: Path, owner: ServiceUser, is_replaced: bool) -> list[str]:
    is_elsewhere = folder != SYSTEM_UNITS
    steps = []
    if is_elsewhere:
        steps.append(f"copy     sudo cp -r {folder}/asyncrl*.service* {folder}/asyncrl.target {SYSTEM_UNITS}/")
    if owner.ids is None:
        steps.append(f"user     {_placed(folder, 'sysusers')} && sudo systemd-sysusers asyncrl.conf")
    if is_elsewhere or owner.ids is None:
        steps.append(f"folders  {_placed(folder, 'tmpfiles')} && sudo systemd-tmpfiles --create asyncrl.conf")
    steps.append("start    sudo systemctl daemon-reload && sudo systemctl enable --now asyncrl.target")
    if is_replaced:
        steps.append("apply    sudo systemctl daemon-reload && sudo systemctl restart asyncrl.target")
    return [*steps, "status   systemctl status 'asyncrl*'", "log      journalctl -u 'asyncrl*' -f"]


def _placed(folder: Path, kind: str) -> str:
    """Command that puts a file where systemd reads files of its kind."""
    return f"sudo install -Dm 644 {folder}/asyncrl.{kind} /etc/{kind}.d/asyncrl.conf"


# ── uninstall ─────────────────────────────────────────────────────────────────────────────────
# The files that `asyncrl services install` wrote, known by their first line, and those of supervisord are removed.
# What an operator has added beside them, the run, its secret, its logs, keys and its user stay.

PATTERNS: Mapping[Manager, tuple[str, ...]] = {
    "systemd": ("asyncrl[-@.]*", "asyncrl@*.service.d/*"),
    "supervisord": ("asyncrl.conf", "asyncrl.d/*"),
}
"""Files of the services of each manager, and of their operator."""
CONTROLS = ("supervisord.log*", "supervisord.pid", "ctl.sock*")
"""Files of supervisord in its folder `CONTROL`."""
DATA = (
    (
        r"(?:^d |--run-dir )(/\S+)|^stdout_logfile=(/\S+)/logs/",
        {"config.toml": "the run", "secret": "the secret of the run", "logs": "logs of the services"},
    ),
    (r'--dir (/[^\s"]+)', {"": "what the spool has stored"}),
    (r"--keys (/\S+)", {"": "the broker's key and its allow-list"}),
    (r'(?:ASYNCRL_KEY_FILE="|asyncrl\.key:)(/[^\s"]+)', {"": "the key of this machine's nodes"}),
)
"""Paths in service files, and what may be there, by its name below the path."""
ETC = Path("/etc")
ANSWER_S = 10.0


class Installed(Struct, frozen=True):
    """Files of the services of a machine."""

    folder: Path
    written: list[Path]
    """Files of `asyncrl services install`."""
    controls: list[Path]
    """Files of the supervisord that ran the services."""
    kept: dict[Path, str]
    """Paths that stay, such as an operator's own files and the run, with the reason."""


def find_installed(manager: Manager, folder: Path, *, force: bool) -> Installed:
    """
    The files below ``folder``.

    Raises `ConfigError` if a file of `asyncrl services install` was changed by hand and ``force`` is false, or cannot
    be read.
    """
    paths = sorted({path for pattern in PATTERNS[manager] for path in folder.glob(pattern) if path.is_file()})
    texts = {path: text for path in paths if (text := _read(path) or "").startswith(MARK)}
    if not force and (edited := [path for path, text in texts.items() if _is_edited(text)]):
        raise ConfigError(f"changed by hand: {', '.join(map(str, edited))}; copy what you need, then use --force")
    control = folder / CONTROL
    controls = sorted(path for pattern in CONTROLS for path in control.glob(pattern)) if _conf(folder) in texts else []
    others = dict.fromkeys((path for path in paths if path not in texts), "not written by install")
    return Installed(folder, list(texts), controls, others | _data(texts.values()))


def _data(texts: Iterable[str]) -> dict[Path, str]:
    """Paths of this machine that the files name, and what is there."""
    named = {
        Path(next(filter(None, match.groups()))): contents
        for pattern, contents in DATA
        for text in texts
        for match in re.finditer(pattern, text, re.MULTILINE)
    }
    found = {
        path: ", ".join(what for name, what in contents.items() if os.access(path / name, os.F_OK))
        for path, contents in named.items()
    }
    return {path: what for path, what in found.items() if what}


def require_stopped(manager: Manager, folder: Path) -> None:
    """Raise `ConfigError`, with the command that stops them, if the services in ``folder`` run or start at boot."""
    if found := next(_in_use(folder) if manager == "systemd" else _answers(folder), ""):
        command = "sudo systemctl disable --now asyncrl.target" if manager == "systemd" else f"{_ctl(folder)} shutdown"
        raise ConfigError(f"{found}: stop the services on this machine first: {command}")


def remove(found: Installed) -> None:
    """Remove these files, and the folders that this leaves empty. Raises `ConfigError` if one cannot be."""
    for path in (*found.written, *found.controls):
        try:
            path.unlink()
        except OSError as error:
            raise ConfigError(f"cannot remove {path}: {error.strerror}") from error
    made = {path.parent for path in found.written} - {found.folder}
    emptied = [*made, *([found.folder / CONTROL] if _conf(found.folder) in found.written else [])]
    if found.written and not found.folder.samefile(Path()):
        emptied.append(found.folder)
    for folder in emptied:
        with suppress(OSError):  # there is none, or it has other files
            folder.rmdir()


def last_steps(manager: Manager, folder: Path, etc: Path = ETC) -> list[str]:
    """Lines with the commands that follow."""
    if manager == "supervisord" or folder != SYSTEM_UNITS:
        return []
    copies = [path for kind in ("tmpfiles", "sysusers") if (path := etc / f"{kind}.d" / "asyncrl.conf").exists()]
    return ["reload   sudo systemctl daemon-reload", *(f"copy     sudo rm {path}" for path in copies)]


def _in_use(folder: Path) -> Iterator[str]:
    """Sentences about services that systemd runs, or would start."""
    for link in sorted(folder.glob("*.wants/asyncrl*")):
        yield f"{link.name} is enabled"
    if folder == SYSTEM_UNITS and (systemctl := shutil.which("systemctl")):
        command = [systemctl, "list-units", "--plain", "--no-legend", "--state=active,activating", "asyncrl*"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
        for line in done.stdout.splitlines():
            yield f"{line.split()[0]} runs"


def _answers(folder: Path) -> Iterator[str]:
    """A sentence about a supervisord of these services that runs."""
    with socket.socket(socket.AF_UNIX) as link:
        try:
            link.connect(str(folder / CONTROL / "ctl.sock"))
        except OSError:  # nobody listens
            return
    yield f"supervisord runs with {_conf(folder)}"
