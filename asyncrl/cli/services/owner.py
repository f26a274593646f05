"""The user of the services, and the folders and the secret that are made for this user."""

import getpass
import grp
import os
import pwd
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.files.secret_file import new_secret, write_secret


class Owner(Struct, frozen=True):
    """User of the services."""

    name: str
    group: str
    home: str = ""
    ids: tuple[int, int] | None = None
    """Numbers of user and group; None if `systemd-sysusers` is still to make the user."""


def find_owner(user: str | None, *, is_made_later: bool) -> Owner:
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
            return Owner(name, name)
        raise ConfigError(
            f"--user {name!r}: there is no such user; create it, for example with useradd --system {name}"
        ) from None
    group = grp.getgrgid(found.pw_gid).gr_name
    return Owner(name, group, found.pw_dir, (found.pw_uid, found.pw_gid))


def make_folders(folders: Sequence[Path], owner: Owner) -> None:
    """
    Make what is missing of these folders and their parents; it belongs to ``owner``.

    For a user that does not exist yet, `systemd-tmpfiles` gives the folders away later; others may pass their parents.
    """
    for folder in folders:
        for path in reversed([path for path in (folder, *folder.parents) if not path.is_dir()]):
            with _creating(path):
                path.mkdir(mode=0o700 if owner.ids or path == folder else 0o755)
                _give(path, owner)


def make_secret(path: Path, owner: Owner) -> None:
    """Make the secret of a run, unless there is one."""
    if not path.exists():
        with _creating(path):
            write_secret(path, new_secret())
            _give(path, owner)


def closed_folder(path: Path, owner: Owner) -> Path | None:
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


def _give(path: Path, owner: Owner) -> None:
    if os.geteuid() == 0 and owner.ids:
        os.chown(path, *owner.ids)


@contextmanager
def _creating(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot create {path}: {error.strerror}") from error
