"""Nodes of a run as processes, beside an example that plays the missing role."""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]

StartNodes = Callable[..., str]


def load_example(name: str) -> ModuleType:
    """Import ``examples/NAME.py``."""
    spec = spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def start_nodes(toy: Path, tmp_path: Path) -> Iterator[StartNodes]:
    """Start a broker and other nodes of a toy run; ``start_nodes("reward", steps=2)`` returns the address."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*roles: str, steps: int) -> str:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        settings = [f"run.steps={steps}", f"run.dir={tmp_path}", "run.name=run"]
        run_file = ["--config", str(toy / "toy.toml"), *(word for setting in settings for word in ("--set", setting))]
        for role, options in [("broker", run_file), *((role, []) for role in roles)]:
            command = [sys.executable, "-m", "asyncrl.cli.node", "--role", role, "--broker", address, *options]
            processes.append(subprocess.Popen(command, cwd=tmp_path))
        return address

    yield start
    for process in processes:
        process.kill()
        process.wait()
