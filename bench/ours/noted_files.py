"""
The environment of `bench/container_kills.py`: hidden sums whose state is a file in the episode's container.

Each turn is noted as in `noted_boxes`, and appended to the file; an episode that goes on with a file which lacks one of
its turns, or has one too many, notes that as turn -1.
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from ours import noted_boxes

from asyncrl.environment import Container, Said, Step, Task

FILE = "/turns"


class Filed:
    """Continued from its state, and from the snapshot of its container."""

    resume = "snapshot"

    def __init__(self) -> None:
        self._boxes = noted_boxes.Saved()

    async def reset(self, task: Task) -> None:
        self._take(task)
        self._boxes.reset(task)
        await self._container.put(FILE, b"")

    async def step(self, said: Said) -> Step:
        """Answer a turn, once the file in the container has it."""
        before = self._boxes._num_turns
        line = ["sh", "-c", f"cat >> {FILE[1:]}; wc -l < {FILE[1:]}"]
        code, out, error = await self._container.run(line, input=f"{before}\n".encode(), timeout_s=60)
        if code or int(out) != before + 1:
            noted_boxes.note(self._name, -1, f"{code} {out!r} {error!r}, expected {before + 1} lines")
        await asyncio.sleep(0)
        return self._boxes.step(said)

    async def snapshot(self) -> bytes:
        return self._boxes.snapshot()

    async def restore(self, task: Task, state: bytes) -> None:
        self._take(task)
        self._boxes.restore(task, state)

    def _take(self, task: Task) -> None:
        assert task.container is not None
        self._container: Container = task.container
        self._name = task.name
