"""Addresses of unix sockets in a folder that only its user can enter: the kernel lets nobody else connect."""

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from asyncrl.errors import ConfigError


def private_address(name: str, run_id: str, environment: Mapping[str, str] = os.environ) -> str:
    """
    Address for socket ``name`` of a run; the same for every start of the run by this user.

    The folder is below systemd's ``RUNTIME_DIRECTORY``, ``XDG_RUNTIME_DIR`` or else the folder for temporary files: a
    run directory may lie on a file system without sockets, or below a path too long for one.

    Raises:
        ConfigError: The folder cannot be made, or belongs to another user.
    """
    parent = environment.get("RUNTIME_DIRECTORY", "").split(":")[0] or environment.get("XDG_RUNTIME_DIR")
    folder = Path(parent or tempfile.gettempdir()) / f"asyncrl-{os.getuid()}-{run_id[:16]}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(f"cannot make the folder {folder} for sockets: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{folder}, the folder for the run's sockets, is open to other users: remove it")
    return f"ipc://{folder / name}"
