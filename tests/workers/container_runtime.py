"""The container runtime of tests: the stand-in for podman, or the one that ``ASYNCRL_TEST_RUNTIME`` names."""

import os
import sys
from pathlib import Path

STAND_IN = Path(__file__).with_name("podman.py")
REAL = os.environ.get("ASYNCRL_TEST_RUNTIME", "")
"""Program of a real runtime, such as ``podman``; it needs the image `IMAGE`, or a registry that has it."""
IMAGE = "docker.io/library/debian:stable-slim" if REAL else "base"


def runtime(folder: Path) -> str:
    """Path of the runtime's program; the stand-in keeps its state in ``folder``, and knows the image `IMAGE`."""
    if REAL:
        return REAL
    (folder / "state" / "registry" / IMAGE).mkdir(parents=True)
    program = folder / "podman"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -ES "{STAND_IN}" "{folder / "state"}" "$@"\n')
    program.chmod(0o755)
    return str(program)
