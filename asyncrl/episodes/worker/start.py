"""
``python start.py``: a process that runs environments, under any interpreter of Python 3.9 or newer.

`asyncrl.episodes.pool` starts it by its path. That interpreter need not have asyncrl: the package is loaded from the
place of this file, and nothing else of its folder becomes importable. The worker and all it imports of asyncrl need the
standard library alone.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]
"""Folder of asyncrl."""


def main() -> None:
    set_path()
    load_package()
    importlib.import_module("asyncrl.episodes.worker.server").main()


def set_path() -> None:
    """Import from the working directory, as ``python -m`` does, and not from the folder of this file."""
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [os.getcwd(), *(place for place in sys.path if place not in ("", here))]  # noqa: PTH109  as Python


def load_package() -> None:
    """Make ``asyncrl`` this one, whether or not the interpreter has another."""
    spec = importlib.util.spec_from_file_location(
        "asyncrl", PACKAGE / "__init__.py", submodule_search_locations=[str(PACKAGE)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{PACKAGE} is not the package asyncrl")
    module = sys.modules["asyncrl"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
