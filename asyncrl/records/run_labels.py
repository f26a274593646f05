"""Labels of several runs that are shown side by side."""

from collections.abc import Sequence
from pathlib import Path


def labels(runs: Sequence[Path]) -> list[str]:
    """Name of each run: its folder, with as many of the folders above it as tell it from the others."""
    parts = [path.resolve().parts for path in runs]
    found = []
    for own in parts:
        length = 1
        while length < len(own) and sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        found.append("/".join(own[-length:]).lstrip("/") if length < len(own) else own[-1])
    return found
