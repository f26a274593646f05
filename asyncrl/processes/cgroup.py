"""
A cgroup (version 2) for one worker, where this process may make one.

The kernel keeps every process that a worker starts in it, however it detaches itself, and kills them all at once. A
function that runs as root, or as the owner of the cgroup, can move its processes out.
"""

import os
from contextlib import suppress
from pathlib import Path

MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
OWN = Path("/proc/self/cgroup")


def make(name: str, mounts: tuple[Path, ...] = MOUNTS, own: Path = OWN) -> Path | None:
    """Make a cgroup below that of this process; None without cgroups, permission, or ``cgroup.kill`` (Linux 5.14)."""
    with suppress(OSError):
        path = next(line[3:] for line in [*own.read_text().splitlines(), "0::"] if line.startswith("0::"))
        for mount in mounts:
            if path and (mount / "cgroup.controllers").exists():
                return _made(mount / path.lstrip("/") / name)
    return None


def join(cgroup: Path) -> None:
    """Move this process into the cgroup; it stays outside if it may not."""
    with suppress(OSError):
        (cgroup / "cgroup.procs").write_text("0")


def kill(cgroup: Path) -> None:
    with suppress(OSError):
        (cgroup / "cgroup.kill").write_text("1")


def remove(cgroup: Path) -> bool:
    """Remove the cgroup, and those that its processes made in it; False while a process in it still runs."""
    for folder, _, _ in os.walk(cgroup, topdown=False):
        with suppress(OSError):
            Path(folder).rmdir()
    return not cgroup.exists()


def _made(cgroup: Path) -> Path | None:
    cgroup.mkdir()
    if os.access(cgroup / "cgroup.kill", os.W_OK):
        return cgroup
    cgroup.rmdir()
    return None
