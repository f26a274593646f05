"""Paths in the cache of the Hugging Face Hub, which tell the name and the commit of what they hold."""

import re

from msgspec import Struct

_SNAPSHOT = re.compile(
    r".*/(?:models|datasets)--(?P<owner>.+?)--(?P<name>[^/]+)/snapshots/(?P<commit>[0-9a-f]+)(?:/(?P<file>.+))?/?"
)


class Snapshot(Struct, frozen=True):
    repo: str
    """``owner/name``."""
    commit: str
    file: str
    """Path of a file in the snapshot; empty for the folder itself."""


def snapshot_of(path: str) -> Snapshot | None:
    """The snapshot that a path is in; None outside the cache."""
    found = _SNAPSHOT.fullmatch(path)
    return Snapshot(f"{found['owner']}/{found['name']}", found["commit"], found["file"] or "") if found else None
