"""
Temporary folders of workers, which disappear with them.

    /tmp/asyncrl-workers-1000/asyncrl-environment-5f3a.../      locked as long as its starter or its keeper lives

The keeper removes the folder of its worker. If it is killed together with the process that started it, the next start
on this machine finds the folder without a lock, kills the processes marked with its name, and removes it.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.processes import process_tree

MARK = "ASYNCRL_WORKER"
"""Environment variable of a keeper and all below it, with a name of its own: how they are found without the keeper."""
MODE = 0o711
"""Others may pass, and so a sandbox that runs as nobody, but see no names."""


class WorkerFolder(Struct, frozen=True):
    path: Path
    lock: int
    """File descriptor of the folder; the folder is in use as long as a process has it open."""

    def close(self) -> None:
        """Give up this process's hold; the keeper has its own."""
        os.close(self.lock)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def make(name: str, base: Path | None = None) -> WorkerFolder:
    """Make and lock a folder; raises `ConfigError` if it cannot be made safely."""
    with _locked(base or default_base()) as parent:
        path = parent / name
        path.mkdir(MODE)
        path.chmod(MODE)  # whatever the umask
        folder = WorkerFolder(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        fcntl.flock(folder.lock, fcntl.LOCK_EX)
        return folder


def sweep(base: Path | None = None) -> list[str]:
    """Remove folders that nobody holds, with the processes marked by their names; return these names."""
    swept = []
    with _locked(base or default_base()) as parent:
        for path in parent.iterdir():
            if path.is_dir() and _is_free(path):
                process_tree.kill(process_tree.marked(f"{MARK}={path.name}"))
                shutil.rmtree(path, ignore_errors=True)
                swept.append(path.name)
    return swept


def default_base() -> Path:
    return Path(tempfile.gettempdir(), f"asyncrl-workers-{os.geteuid()}")


@contextmanager
def _locked(base: Path) -> Iterator[Path]:
    """Hold the lock of the parent folder, so that none is found between its making and its lock."""
    try:
        with suppress(FileExistsError):
            base.mkdir(MODE, parents=True)
            base.chmod(MODE)
        about = base.lstat()
        fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise ConfigError(f"no folder for workers can be made at {base}: {error.strerror}; set TMPDIR") from error
    try:
        if about.st_uid != os.geteuid() or about.st_mode & 0o022:
            raise ConfigError(f"{base} belongs to another user, or others may write to it; remove it, or set TMPDIR")
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield base
    finally:
        os.close(fd)


def _is_free(path: Path) -> bool:
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        finally:
            os.close(fd)
    return False
