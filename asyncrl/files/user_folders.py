"""Folders of a user, by the XDG Base Directory Specification."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

FOLDERS = {"state": ".local/state", "config": ".config", "cache": ".cache"}
"""Folder of each kind below the home directory, unless the variable ``XDG_*_HOME`` names another."""


def user_folder(kind: Literal["state", "config", "cache"], environment: Mapping[str, str]) -> Path | None:
    """Folder for files of this kind; None if the environment names neither it nor a home directory."""
    if named := environment.get(f"XDG_{kind.upper()}_HOME"):
        return Path(named)
    home = environment.get("HOME")
    return Path(home) / FOLDERS[kind] if home else None
