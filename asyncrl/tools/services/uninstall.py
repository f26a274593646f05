"""
Removes the files that `asyncrl services install` wrote, known by their first line, and nothing else.

What an operator has added beside them, the run, its secret, its logs and its user stay.
"""

import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.tools.services.install import MARK, SYSTEM_UNITS, ctl, is_edited, read
from asyncrl.tools.services.render import Manager

PATTERNS: Mapping[Manager, tuple[str, ...]] = {
    "systemd": ("asyncrl[-@.]*", "asyncrl@*.service.d/*"),
    "supervisord": ("asyncrl.conf", "asyncrl.d/*"),
}
"""Files of the services of each manager, and of their operator."""
ETC = Path("/etc")
ANSWER_S = 10.0


class Installed(Struct, frozen=True):
    """Files of the services of a machine."""

    written: list[Path]
    """Files of `asyncrl services install`."""
    others: list[Path]
    """Files of an operator, beside them."""


def find_installed(manager: Manager, folder: Path, *, force: bool) -> Installed:
    """
    The files below ``folder``.

    Raises `ConfigError` if a file of `asyncrl services install` was changed by hand and ``force`` is false, or cannot
    be read.
    """
    paths = sorted({path for pattern in PATTERNS[manager] for path in folder.glob(pattern) if path.is_file()})
    written = [path for path in paths if (read(path) or "").startswith(MARK)]
    if not force and (edited := [path for path in written if is_edited(read(path))]):
        raise ConfigError(f"changed by hand: {', '.join(map(str, edited))}; copy what you need, then use --force")
    return Installed(written, [path for path in paths if path not in written])


def require_stopped(manager: Manager, folder: Path) -> None:
    """Raise `ConfigError`, with the command that stops them, if the services in ``folder`` run or start at boot."""
    if found := next(_in_use(folder) if manager == "systemd" else _answers(folder), ""):
        command = "sudo systemctl disable --now asyncrl.target" if manager == "systemd" else f"{ctl(folder)} shutdown"
        raise ConfigError(f"{found}: stop the services on this machine first: {command}")


def remove(found: Installed) -> None:
    """Remove the written files, and the folders that this leaves empty. Raises `ConfigError` if one cannot be."""
    for path in found.written:
        try:
            path.unlink()
        except OSError as error:
            raise ConfigError(f"cannot remove {path}: {error.strerror}") from error
    for folder in {path.parent for path in found.written}:
        if folder.name.startswith("asyncrl") and not any(folder.iterdir()):
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
            link.connect(str(folder / "supervisord" / "ctl.sock"))
        except OSError:  # nobody listens
            return
    yield f"supervisord runs with {folder / 'asyncrl.conf'}"
