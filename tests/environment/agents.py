"""An interpreter with the packages of agents: mcp, skyrl-gym, textarena, reasoning-gym."""

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

PYTHON = os.environ.get("ASYNCRL_AGENTS_PYTHON") or str(Path(__file__).parents[2] / ".venv-agents" / "bin" / "python")


@cache
def has(package: str) -> bool:
    if not Path(PYTHON).exists():
        return False
    return subprocess.run([PYTHON, "-c", f"import {package}"], capture_output=True, check=False).returncode == 0


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not has(package), reason=f"needs {package} in ASYNCRL_AGENTS_PYTHON or .venv-agents")
