"""
First process of a machine, in namespaces of its own; it and the machine end when its standard input closes.

    unshare --net --uts --mount --pid --fork --propagation private python -m tests.cluster.boot DISK HOSTNAME KEEP...

Makes the file system of the host read-only, and puts folders of the machine's DISK over those that programs write to.
KEEP are folders of the host that stay visible below them, read-only.
"""

import signal
import socket
import subprocess
import sys
from pathlib import Path

WRITABLE = ("/tmp", "/var/tmp", "/root", "/home", "/mnt")
"""Folders that every machine has for itself, on its disk."""
VOLATILE = ("/run", "/dev/shm")
"""Folders in memory, empty after every start."""
FILES = ("/etc/hosts", "/etc/hostname")


def main(disk: Path, hostname: str, kept: list[Path]) -> None:
    socket.sethostname(hostname)
    ip("link", "set", "lo", "up")
    writable = [folder for folder in WRITABLE if Path(folder).is_dir()]
    for path in kept:
        if any(path.is_relative_to(folder) for folder in writable):
            keep(path, disk / path.relative_to("/"))
    for file in FILES:
        mount("--bind", str(disk / file.removeprefix("/")), file)
    for folder in sorted(
        writable, key=disk.is_relative_to
    ):  # The disk is seen until the folder that has it is covered.
        cover(Path(folder), disk)
    for folder in VOLATILE:
        mount("-t", "tmpfs", "tmpfs", folder)
    mount("-t", "proc", "proc", "/proc")
    mount("-o", "remount,bind,ro", "/")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Orphans come to the first process, and need no further care.
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


def keep(path: Path, at: Path) -> None:
    at.mkdir(parents=True, exist_ok=True)
    mount("--bind", str(path), str(at))
    mount("-o", "remount,bind,ro", str(at))


def cover(folder: Path, disk: Path) -> None:
    own = disk / folder.relative_to("/")
    own.mkdir(parents=True, exist_ok=True)
    own.chmod(0o1777 if folder.name in ("tmp", "shm") else 0o755)
    mount("--rbind", str(own), str(folder))


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], [Path(path) for path in sys.argv[3:]])
