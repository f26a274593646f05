"""Shared memory for weights that this process keeps open."""

from pathlib import Path


def shared_memory() -> list[str]:
    """The kernel's name of each."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(path.readlink()))
        except FileNotFoundError:  # the descriptor of this listing
            continue
    return [name for name in found if "asyncrl-weights" in name]
