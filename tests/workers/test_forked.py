"""Processes that share one import."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from asyncrl.workers.child import Child, module_command
from asyncrl.workers.forked import Importer

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes elsewhere are started by exec alone"),
    pytest.mark.slow("each test starts an interpreter that imports"),
]

COUNTED = """
import os
with open(os.environ["IMPORTS"], "a") as file:
    file.write(f"{os.getpid()}\\n")
"""
"""A module that takes long to import: each import leaves a line."""
ROLE = """
import os, sys, time
import counted
print(sys.argv[1:], os.environ["COLOUR"], os.getsid(0) == os.getpid(), flush=True)
if sys.argv[1] == "stay":
    time.sleep(1000)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "counted.py").write_text(COUNTED)
    (tmp_path / "role.py").write_text(ROLE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("IMPORTS", str(tmp_path / "imports"))
    return tmp_path


def a_child(folder: Path, argument: str) -> Child:
    command = module_command("role", argument, "of", "several words")
    return Child(f"role-{argument}", command, folder / f"{argument}.log", {"COLOUR": "red"})


def played(scene: Callable[[Importer], Awaitable[None]], module: str = "counted") -> None:
    async def main(importer: Importer) -> None:
        listening = asyncio.create_task(importer.listen())
        async with asyncio.timeout(60):
            await scene(importer)
        listening.cancel()

    with closing(Importer([module], {})) as importer:
        asyncio.run(main(importer))


def imports(folder: Path) -> list[str]:
    return (folder / "imports").read_text().split()


def test_processes_of_one_import_have_their_own_command_environment_output_and_end(folder: Path) -> None:
    async def scene(importer: Importer) -> None:
        children = [a_child(folder, code) for code in ("0", "78")]
        await asyncio.gather(*(child.start(importer.fork) for child in children))
        assert await asyncio.gather(*(child.wait() for child in children)) == [0, 78]
        assert [child.last_line() for child in children] == [
            f"['{code}', 'of', 'several words'] red True" for code in ("0", "78")
        ]

    played(scene)
    assert len(imports(folder)) == 1


def test_every_end_is_heard_while_others_start(folder: Path) -> None:
    async def scene(importer: Importer) -> None:
        children = [a_child(folder, str(code)) for code in range(20)]
        await asyncio.gather(*(child.start(importer.fork) for child in children))
        assert await asyncio.gather(*(child.wait() for child in children)) == list(range(20))

    played(scene)
    assert len(imports(folder)) == 1


def test_a_process_shows_its_own_command_and_is_ended_like_any_child(folder: Path) -> None:
    async def scene(importer: Importer) -> None:
        child = a_child(folder, "stay")
        await child.start(importer.fork)
        assert child.pid
        await printed(child)
        assert shown(child.pid) == module_command("role", "stay", "of", "several words")
        await child.end(drain_s=30)
        assert await child.wait() == -signal.SIGTERM

    played(scene)


def test_a_process_that_is_killed_is_started_again_without_the_importer(folder: Path) -> None:
    async def scene(importer: Importer) -> None:
        child = a_child(folder, "stay")
        await child.start(importer.fork)
        assert child.pid
        os.kill(child.pid, signal.SIGKILL)
        assert await child.wait() == -signal.SIGKILL
        await child.start()
        await printed(child)
        await child.end(drain_s=30)

    played(scene)
    assert len(imports(folder)) == 2


def test_an_importer_that_is_killed_takes_its_processes_along(folder: Path) -> None:
    async def scene(importer: Importer) -> None:
        child = a_child(folder, "stay")
        await child.start(importer.fork)
        os.kill(importer._process.pid, signal.SIGKILL)
        assert await child.wait() == -signal.SIGKILL
        other = a_child(folder, "0")
        await other.start(importer.fork)
        assert await other.wait() == 0, "it is started by exec"

    played(scene)


@pytest.mark.parametrize("code", ["raise ImportError", "import threading; threading.Thread(target=input).start()"])
def test_what_cannot_be_imported_or_starts_a_thread_is_imported_by_each_process(folder: Path, code: str) -> None:
    (folder / "threaded.py").write_text(code)

    async def scene(importer: Importer) -> None:
        child = a_child(folder, "0")
        await child.start(importer.fork)
        assert await child.wait() == 0

    played(scene, "threaded")


def shown(pid: int) -> list[str]:
    """Words of the command line that `ps` shows."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")


async def printed(child: Child) -> None:
    """Wait for the first line of a child."""
    while not child.last_line():
        await asyncio.sleep(0.01)
