"""Locks that one process holds for its life; the kernel releases them however it ends."""

import fcntl
import os
import re
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from asyncrl.errors import ConfigError, LinkError
from asyncrl.files.atomic import needed, replacing

POLL_S = 0.05


@contextmanager
def locked(
    path: Path,
    held: str,
    wait_s: float = 0.0,
    *,
    remedy: str = "",
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """
    Hold the lock file at ``path``, which is created if it is missing.

    Args:
        held: Sentence for the error if another process holds the lock; its number is appended.
        wait_s: Time for that process to end.
        remedy: Advice that ends the sentence.

    Raises:
        LinkError: Another process still holds the lock.
        RunFailed: The file cannot be opened.
    """
    with needed(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline_s = clock() + wait_s
        while not try_lock(descriptor):
            if clock() >= deadline_s:
                owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                raise LinkError(f"{held} (process {owner or 'unknown'}){f'; {remedy}' if remedy else ''}")
            sleep(POLL_S)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path, locks: Path = Path("/proc/locks")) -> bool:
    """True if another process holds the lock. Of another user's, which cannot be tried, the kernel's list tells."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    except PermissionError:
        listed = f":{path.stat().st_ino} 0 EOF"
        return any(line.endswith(listed) and " FLOCK " in line for line in locks.read_text().splitlines())
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder until it is closed; False if another process holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# ── private socket ────────────────────────────────────────────────────────────────────────────
# Addresses of unix sockets in a folder that only its user can enter: the kernel lets nobody else connect.
#
#     /tmp/asyncrl-DIGEST/spool             DIGEST of the run, its user, and the real path of the folder it is kept in
#     /tmp/asyncrl-DIGEST-RANDOM/spool      the first was another user's; PLACE/sockets remembers RANDOM
#
# A copy of a run has another path, and so a folder of its own. The folder lives as long as the process that has made
# it; one that a killed process left is used again, or removed by the next start of any run.

DIGEST_CHARS = 20
RANDOM_BYTES = 4
FOLDER = re.compile(rf"asyncrl-[0-9a-f]{{{DIGEST_CHARS}}}(-[0-9a-f]{{{2 * RANDOM_BYTES}}})?")
REMEMBERED = "sockets"
"""File that keeps the random part of the name."""
LEFT_S = 60.0
"""Age of a folder that no start is about to take."""
NAMES = 8
"""Names to try: whoever takes them all away from us would have to guess random ones."""


@contextmanager
def private_socket(name: str, identity: str, place: Path, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """
    Address for socket ``name`` of the run or spool ``identity``, for the time of the block.

    It is the same for every start of this user in this place, unless another user took it. The folder is below
    systemd's ``RUNTIME_DIRECTORY``, ``XDG_RUNTIME_DIR`` or else the folder for temporary files: ``place``, the folder
    that the run or spool is kept in, may lie on a file system without sockets, or below a path too long for one.

    Raises:
        ConfigError: The folder cannot be made.
        RunFailed: The disk refuses to remember its name.
    """
    parent = environment.get("RUNTIME_DIRECTORY", "").split(":")[0] or environment.get("XDG_RUNTIME_DIR")
    digest = sha256(f"{identity}\0{os.path.realpath(place)}\0{os.getuid()}".encode()).hexdigest()[:DIGEST_CHARS]
    folder = _make(Path(parent or tempfile.gettempdir()), f"asyncrl-{digest}", place / REMEMBERED)
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.utime(held)  # It may be old, and another start removes what is old and not locked.
        with suppress(OSError):  # systemd-tmpfiles leaves alone what is locked.
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_left(folder.parent)
        yield f"ipc://{folder / name}"
    finally:
        os.close(held)
        _remove(folder)


def _remove_left(parent: Path) -> None:
    """Remove folders that killed processes of this user have left: nobody holds them, or hears at their sockets."""
    for folder in parent.glob("asyncrl-*"):
        if FOLDER.fullmatch(folder.name):
            with suppress(OSError):  # another user's, or removed by another start
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    found = os.fstat(descriptor)
                    is_left = found.st_uid == os.getuid() and time.time() - found.st_mtime > LEFT_S
                    if is_left and try_lock(descriptor) and not any(map(_is_heard, folder.iterdir())):
                        _remove(folder)
                finally:
                    os.close(descriptor)


def _is_heard(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as link:
        try:
            link.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


def _remove(folder: Path) -> None:
    with suppress(OSError):  # Somebody has removed it already.
        for left in folder.iterdir():
            left.unlink()
        folder.rmdir()


def is_gone(address: str) -> bool:
    """True if the file of a unix socket was removed: by a cleaner of temporary files, say."""
    return not Path(address.removeprefix("ipc://")).exists()


def make_again(address: str) -> None:
    """Make the folder of a unix socket again. Raises `ConfigError` if another user has made it meanwhile."""
    folder = Path(address.removeprefix("ipc://")).parent
    if not _is_own(folder):
        raise ConfigError(f"{folder}, the folder for sockets, was removed, and others may enter the one that is there")


def _make(parent: Path, name: str, remembered: Path) -> Path:
    """Make a folder that is this user's alone, or find that of an earlier start."""
    before = remembered.read_text().strip() if remembered.is_file() else ""
    for number in range(NAMES):
        suffix = before if number == 0 else secrets.token_hex(RANDOM_BYTES)
        folder = parent / (f"{name}-{suffix}" if suffix else name)
        if not _is_own(folder):
            continue
        if suffix != before:
            with needed(remembered), replacing(remembered, durable=False) as unfinished:
                unfinished.write_text(f"{suffix}\n")
        return folder
    raise ConfigError(f"other users keep making the folder for sockets in {parent}: set XDG_RUNTIME_DIR to one's own")


def _is_own(folder: Path) -> bool:
    """Make a folder, if it is missing. False if there is something else, or a folder that others may have used."""
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(f"cannot make the folder {folder} for sockets: {error.strerror}") from error
    is_closed = not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and is_closed
