"""An interpreter with the packages of agents: mcp, skyrl-gym, textarena, reasoning-gym."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PYTHON = os.environ.get("ASYNCRL_AGENTS_PYTHON") or str(Path(__file__).parents[3] / ".venv-agents" / "bin" / "python")


@cache
def has(package: str) -> bool:
    if not Path(PYTHON).exists():
        return False
    return subprocess.run([PYTHON, "-c", f"import {package}"], capture_output=True, check=False).returncode == 0


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not has(package), reason=f"needs {package} in ASYNCRL_AGENTS_PYTHON or .venv-agents")


def run_beside(program: str, *arguments: str) -> str:
    """Output of a program under our interpreter, which finds the packages of agents behind our own."""
    asked = [PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"]
    place = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    command = [sys.executable, "-c", f"import sys; sys.path.append({place!r})\n{program}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
