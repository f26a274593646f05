"""A worker below a keeper, from the side of the process that started it."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from asyncrl.workers import folders
from asyncrl.workers.folders import MARK
from asyncrl.workers.keeper import AT_ONCE_BYTES, GuardLimits
from asyncrl.workers.kept import KeptProcess

LIMITS = GuardLimits("reward", memory_bytes=1 << 30, processes=50, file_bytes=1 << 20)
T = TypeVar("T")
SLEEPS = f"import os\nprint(os.environ['{MARK}'], flush=True)\nimport time; time.sleep(3600)"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs subreapers and /proc"),
    pytest.mark.timeout(30),
]


def with_worker(program: str, use: Callable[[KeptProcess], Awaitable[T]]) -> T:
    async def start_and_use() -> T:
        worker = await KeptProcess.start([sys.executable, "-c", program], LIMITS, AT_ONCE_BYTES, {"GREETING": "hello"})
        try:
            return await use(worker)
        finally:
            await worker.kill()
            await worker.kill()

    return asyncio.run(start_and_use())


def test_a_worker_has_pipes_and_variables() -> None:
    async def answer(worker: KeptProcess) -> bytes:
        worker.stdin.write(b"world\n")
        return await worker.stdout.readline()

    assert with_worker("import os\nprint(os.environ['GREETING'], input())", answer) == b"hello world\n"


def test_the_end_of_a_worker_has_a_cause() -> None:
    assert with_worker("raise SystemExit(7)", KeptProcess.cause) == (
        "the reward worker died: it exited with code 7; its last output is on stderr"
    )


def test_a_worker_that_lives_on_without_its_pipe_is_told_apart() -> None:
    async def cause(worker: KeptProcess) -> str:
        assert await worker.stdout.read() == b""
        return await worker.cause()

    told = with_worker("import os, time\nos.close(1)\ntime.sleep(3600)", cause)

    assert told.startswith("the function closed the pipe of the reward worker")


@pytest.mark.slow("waits until init takes an orphan")
def test_a_worker_whose_keeper_is_killed_is_found_by_its_mark() -> None:
    async def marked_after_the_kill(worker: KeptProcess) -> list[int]:
        mark = f"{MARK}={(await worker.stdout.readline()).decode().strip()}"
        (keeper,) = [pid for pid in folders.marked(mark) if folders.below(pid)]
        os.kill(keeper, signal.SIGKILL)
        assert folders.marked(mark)  # this program has asked for no signal when its parent dies
        await worker.kill()
        return folders.marked(mark)

    assert with_worker(SLEEPS, marked_after_the_kill) == []
