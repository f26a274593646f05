"""Absolute paths as people read them, and as files that outlive a command keep them."""

import os
from pathlib import Path


def absolute(path: Path) -> Path:
    """The absolute path without ``..``. Links are kept, but those that a ``..`` leaves, which are followed."""
    plain = Path(os.path.normpath(path.absolute()))
    return plain if plain.resolve() == path.resolve() else path.resolve()
