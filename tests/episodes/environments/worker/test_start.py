"""The program of a worker, under interpreters that have nothing but the standard library."""

import ast
import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

import asyncrl
from asyncrl.config.sections.environment import Environment
from asyncrl.episodes.pool import EnvironmentPool
from asyncrl.episodes.worker import start
from tests.episodes.environments.environments import said, task

PACKAGE = Path(asyncrl.__file__).parent
SHOWS_ITSELF = """
import json, sys
import asyncrl, helper_of_mine
from asyncrl.environment import Step

class Shows:
    def reset(self, task):
        import asyncrl.episodes.worker.load
        import asyncrl.episodes.worker.tools.python
    def step(self, said):
        names = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
        return Step(messages=[{"role": "user", "content": json.dumps([sys.path, names])}])
"""


@pytest.mark.timeout(60)
def test_a_worker_needs_the_standard_library_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shows.py").write_text(SHOWS_ITSELF)
    (tmp_path / "helper_of_mine.py").write_text("")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.chdir(tmp_path)

    async def ask() -> str:
        environment = Environment(function="shows:Shows", python=str(python), workers=1)
        async with EnvironmentPool(environment, "run", "node") as pool:
            episode = pool.open("a")
            await episode.reset(task())
            return str((await episode.step(said())).messages[0]["content"])

    path, files = json.loads(asyncio.run(ask()))

    assert path[0] == str(tmp_path)
    assert not any("site-packages" in place or place == str(PACKAGE.parent) for place in path)
    ours = [Path(file) for name, file in files.items() if name.partition(".")[0] == "asyncrl"]
    assert all(file.is_relative_to(PACKAGE) for file in ours)
    assert not any("site-packages" in file for file in files.values())
    for file in ours:
        ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 9))


def test_the_folder_of_the_program_is_not_searched_for_modules(tmp_path: Path) -> None:
    here = str(Path(start.__file__).parent)
    program = f"import sys; sys.path[:0] = [{here!r}, '']\n" + (
        f"sys.path.append({str(PACKAGE.parent)!r})\nfrom asyncrl.episodes.worker import start\n"
        f"start.set_path(); print(sys.path[0], {here!r} in sys.path or '' in sys.path)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout.split() == [str(tmp_path), "False"]


def test_the_package_is_this_one_even_where_another_is_installed(tmp_path: Path) -> None:
    (tmp_path / "asyncrl.py").write_text("raise ImportError('the wrong one')")
    program = (
        "import importlib.util, sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"spec = importlib.util.spec_from_file_location('start', {start.__file__!r})\n"
        "start = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(start)\n"
        "start.load_package()\nimport asyncrl.environment\nprint(asyncrl.environment.__file__)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == str(PACKAGE / "environment.py")
