"""
Temporary folders of workers, which disappear with them.

    /tmp/asyncrl-workers-1000/asyncrl-environment-5f3a.../      locked as long as its starter or its keeper lives

The keeper removes the folder of its worker. If it is killed together with the process that started it, the next start
on this machine finds the folder without a lock, kills the processes marked with its name, and removes it.
"""

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from asyncrl.errors import ConfigError

# ── process tree ──────────────────────────────────────────────────────────────────────────────
# Processes below another one, from Linux's ``/proc``.
#
#     keeper ─┬─ worker ─┬─ child ── grandchild           below(keeper): all of them, parents before children
#             └─ orphan  └─ child                         orphan: its parent has exited, so it came to the keeper
#
# On other systems there is no ``/proc``: nothing is found there.

PROC = Path("/proc")
HAS_CHILDREN_FILES = (PROC / "self" / "task" / str(os.getpid()) / "children").exists()
"""Most kernels list the children of a process; elsewhere every process must be looked at."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    pid: int
    parent: int
    threads: int
    resident_bytes: int
    """Memory it has mapped; pages that several processes share count for each."""
    cpu_s: float = 0.0
    """Time of a core that it has used."""


def below(root: int) -> list[Process]:
    """Find the descendants of a process, parents before children; those that exit meanwhile may be missing."""
    children = _children if HAS_CHILDREN_FILES else _by_parent()
    found: list[Process] = []
    parents = [root]
    for parent in parents:
        known = children(parent)
        found += known
        parents += [process.pid for process in known]
    return found


def above(pid: int) -> Iterator[int]:
    """Parent of a process, the parent of that one, and so on."""
    while process := _process(pid):
        yield (pid := process.parent)


def family(root: int) -> list[Process]:
    """Find a process and those `below` it; nothing if it has exited."""
    own = _process(root)
    return [own, *below(root)] if own else []


def marked(mark: str) -> list[int]:
    """Find other processes whose environment contained ``mark`` when their program was started."""
    found = []
    for pid in _pids():
        with suppress(OSError):
            if mark.encode() in (PROC / str(pid) / "environ").read_bytes() and pid != os.getpid():
                found.append(pid)
    return found


def has_ended(pid: int) -> bool:
    """True if the main thread of a process has ended, or all of them; others of its threads may end a moment later."""
    return _stat(pid)[:1] in ([], ["Z"], ["X"])


def memory_bytes(processes: list[Process]) -> int:
    """Sum up the memory of processes, each shared page once; slower than adding ``resident_bytes``."""
    return sum(_own_share(process) for process in processes)


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _own_share(process: Process) -> int:
    """Proportional set size: a page that n processes share counts 1/n."""
    with suppress(OSError):
        for line in (PROC / str(process.pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return process.resident_bytes


def _pids() -> Iterator[int]:
    with suppress(OSError):
        yield from (int(name) for name in os.listdir(PROC) if name.isdecimal())  # noqa: PTH208  thousands of paths


def _children(parent: int) -> list[Process]:
    pids: list[int] = []
    with suppress(OSError):
        for task in os.listdir(PROC / str(parent) / "task"):  # noqa: PTH208
            pids += map(int, (PROC / str(parent) / "task" / task / "children").read_text().split())
    return [process for pid in pids if (process := _process(pid))]


def _by_parent() -> Callable[[int], list[Process]]:
    """Look at every process."""
    children: dict[int, list[Process]] = {}
    for pid in _pids():
        if process := _process(pid):
            children.setdefault(process.parent, []).append(process)
    return lambda parent: children.get(parent, [])


def _process(pid: int) -> Process | None:
    if not (fields := _stat(pid)):
        return None
    cpu_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return Process(pid, int(fields[1]), int(fields[17]), int(fields[21]) * PAGE_BYTES, cpu_s)


def _stat(pid: int) -> list[str]:
    """Fields of a process from its state on, the third of ``/proc/PID/stat``; none if it has exited."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name before it may contain anything


# ── folders ───────────────────────────────────────────────────────────────────────────────────

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
                kill(marked(f"{MARK}={path.name}"))
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
