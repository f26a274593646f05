"""
Access to what a run writes: its owner's alone, or its owner's and a group's, which reads.

                         folders   files   umask
    owner alone           0700     0600     077
    shared with a group   0750     0640     027

The umask of a process decides for all that it and its children write, so no writer sets a mode of its own. A run
directory has its mode whatever the umask. In a process whose umask stays as it is, such as a host's, what is written
there withholds what its folder does.
"""

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Literal

from asyncrl.errors import ConfigError
from asyncrl.files.atomic import replacing

OWNER, GROUP = 0o700, 0o750
"""Modes of a run directory."""
PARENT = 0o755
"""Mode of missing folders above a run directory, less what the umask takes: whoever could write there could put another
run in place of one."""
WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def restrict_umask(*, group_reads: bool = False) -> None:
    """Let only the owner, or also the group, read what this process and its children write from now on."""
    os.umask(0o777 & ~_mode(group_reads))


def group_reads(folder: Path) -> bool:
    """True for the directory of a run that is shared with a group."""
    try:
        return stat.S_IMODE(folder.stat().st_mode) & 0o777 == GROUP
    except OSError:
        return False


def make_folder(path: Path, *, group_reads: bool = False) -> None:
    """Make a run directory, and what is missing above it. Raises OSError, such as `FileExistsError`."""
    for parent in reversed([folder for folder in path.parents if not folder.exists()]):
        parent.mkdir(PARENT, exist_ok=True)
    path.mkdir(OWNER)
    if group_reads:
        path.chmod(
            stat.S_IMODE(path.stat().st_mode) & ~0o777 | GROUP
        )  # The bit by which its files have its group stays.


def as_folder(path: Path) -> None:
    """Withhold from others what the folder of a new file or folder withholds from them, whatever the umask."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if withheld := mode & 0o077 & ~path.parent.stat().st_mode:
        path.chmod(mode & ~withheld)


def appending(path: Path) -> BinaryIO:
    """Open a file to append to; a new one is `as_folder`. Raises OSError."""
    mode = 0o666 & (OWNER | path.parent.stat().st_mode)
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, mode))


def close_folder(path: Path, *, group_reads: bool = False) -> str:
    """
    Give the directory of an existing run its mode, if it is this user's.

    Returns:
        A sentence for its owner if other users could enter it; empty otherwise.
    """
    found, mode = path.stat(), _mode(group_reads)
    before = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid() or before & 0o777 == mode:
        return ""
    try:
        path.chmod(before & ~0o777 | mode)
    except OSError as error:
        return f"other users may enter {path} (mode {before:04o}), which cannot be changed: {error.strerror}"
    if not before & 0o777 & ~mode:
        return ""
    return f"other users could enter {path} (mode {before:04o}): it is {mode:04o} from now on"


def require_unaltered(path: Path, what: str) -> None:
    """
    Raise `ConfigError` if another user than its owner and root could have written a file that names code to import.

    ``what`` is the kind of file, for the sentence. It is not repaired: what stands in it would be trusted all the same.
    """
    found, folder = path.stat(), path.parent.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (0, os.geteuid(), folder.st_uid):
        raise ConfigError(
            f"the {what} {path} belongs to user {found.st_uid}, its folder to user {folder.st_uid}: it may name code "
            f"of somebody else; read it, and put a copy of your own in its place"
        )
    if mode & WRITABLE:
        raise ConfigError(
            f"other users can write the {what} {path} (mode {mode:04o}), and it may name code of theirs: read it, then "
            f"chmod 600 {path}"
        )


def _mode(group_reads: bool) -> int:
    return GROUP if group_reads else OWNER


# ── private file ──────────────────────────────────────────────────────────────────────────────
# Text files that only their user can read: keys and secrets.


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600, atomically; raises OSError."""
    with replacing(path) as unfinished:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)


def read_private(path: Path, what: str) -> str:
    """
    Read a file that no other user can read; ``what`` is the kind of file, such as "key file", for the error message.

    Raises:
        ConfigError: The file cannot be read, or other users may read it.
    """
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {what} {path}: {getattr(error, 'strerror', None) or error}") from error
    # systemd's LoadCredential= grants access by an ACL that shows as a group permission.
    is_credential = path.parent == Path(os.environ.get("CREDENTIALS_DIRECTORY", os.devnull))
    if mode & (stat.S_IRWXG | stat.S_IRWXO) and not is_credential:
        raise ConfigError(f"other users can read the {what} {path} (mode {stat.S_IMODE(mode):04o}): chmod 600 {path}")
    return text


# ── secret file ───────────────────────────────────────────────────────────────────────────────
# File with the secret of a run: 64 hexadecimal digits, readable by its user alone.

SECRET_BYTES = 32


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def write_secret(path: Path, secret: bytes) -> None:
    """Write a file that only its user can read, atomically; raises OSError."""
    write_private(path, secret.hex() + "\n")


def is_secret(path: Path) -> bool:
    """True if the file has the form of a secret."""
    try:
        return _secret(path.read_text(encoding="utf-8")) is not None
    except (OSError, UnicodeDecodeError):
        return False


def read_secret(path: Path) -> bytes:
    """
    Read a secret.

    Raises:
        ConfigError: There is no such file, other users may read it, or it is not a secret.
    """
    if (secret := _secret(read_private(path, "secret file"))) is None:
        raise ConfigError(f"{path} is not a secret file: expected {2 * SECRET_BYTES} hexadecimal digits")
    return secret


def _secret(text: str) -> bytes | None:
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        return None
    return secret if len(secret) == SECRET_BYTES else None


# ── user folders ──────────────────────────────────────────────────────────────────────────────
# Folders of a user, by the XDG Base Directory Specification.

FOLDERS = {"state": ".local/state", "config": ".config", "cache": ".cache"}
"""Folder of each kind below the home directory, unless the variable ``XDG_*_HOME`` names another."""


def user_folder(kind: Literal["state", "config", "cache"], environment: Mapping[str, str]) -> Path | None:
    """Folder for files of this kind; None if the environment names neither it nor a home directory."""
    if named := environment.get(f"XDG_{kind.upper()}_HOME"):
        return Path(named)
    home = environment.get("HOME")
    return Path(home) / FOLDERS[kind] if home else None
