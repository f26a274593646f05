"""Child processes of one measurement and their shared temporary directory, both removed afterwards."""

import asyncio
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from asyncrl.workers.child import Child, describe_exit

HERE = Path(__file__).parent
MAIN = HERE / "messages.py"
ENVIRONMENT = {
    "PYTHONPATH": f"{HERE}:{HERE.parent}",  # Use the source tree of this bench, even if another asyncrl is installed.
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
END_S = 5.0

Read = TypeVar("Read")


class ChildFailed(Exception):
    """A child process of a measurement failed or took too long."""


class Processes:
    """
    Async context manager that owns child processes and a temporary directory.

    Args:
        parent: Parent of the temporary directory; its disk determines the cost of a sync.
    """

    def __init__(self, parent: Path) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="asyncrl-bench-", dir=parent, ignore_cleanup_errors=True)
        self.path = Path(self._directory.name)
        self._children: list[Child] = []

    async def __aenter__(self) -> "Processes":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        # The last child measures and the first one serves: end them in reverse order of their start.
        for child in reversed(self._children):
            await child.end(END_S)
        self._directory.cleanup()

    async def start(self, module: str, role: str, *arguments: object) -> Child:
        """Run ``module.CHILDREN[role]`` in a new process."""
        return await self.command(role, [str(MAIN), "--child", module, role, *map(str, arguments)])

    async def command(self, name: str, arguments: list[str], environment: Mapping[str, str] = ENVIRONMENT) -> Child:
        """Run the current Python interpreter with ``arguments``."""
        child = Child(name, [sys.executable, *arguments], self.path / f"{name}.log", environment)
        self._children.append(child)
        await child.start()
        return child

    async def result(self, child: Child, kind: type[Read], deadline_s: float) -> Read:
        """
        Wait for ``child`` to end, and return the value it passed to `report`.

        Raises:
            ChildFailed: The child reported nothing, or did not end within ``deadline_s``.
        """
        try:
            code = await asyncio.wait_for(child.wait(), deadline_s)
        except TimeoutError:
            raise ChildFailed(f"{child.name} did not finish within {deadline_s:g} s: {self._last_lines()}") from None
        try:
            return msgspec.json.decode((self.path / "result.json").read_bytes(), type=kind)
        except FileNotFoundError:
            raise ChildFailed(f"{child.name} {describe_exit(code)}: {self._last_lines()}") from None

    def _last_lines(self) -> str:
        return "; ".join(f"{child.name}: {child.last_line()}" for child in self._children)


def report(path: str, result: object) -> None:
    """Called in a child: save its result for `Processes.result`."""
    (Path(path) / "result.json").write_bytes(msgspec.json.encode(result))


def version_of(package: str, python: str) -> str:
    """Version of a package for another Python interpreter; empty if it is not installed there."""
    script = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", script], check=False, capture_output=True, text=True).stdout.strip()


def free_address() -> str:
    """An unused loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"
