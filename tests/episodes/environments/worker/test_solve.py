"""Agent programs that are functions, async or plain."""

import asyncio
import threading

import pytest

from asyncrl.environment import Client, Task
from asyncrl.episodes.worker.load import Solve
from asyncrl.errors import ConfigError

TASK = Task([{"role": "user", "content": "Add."}], answer="5")
CLIENT = Client("http://127.0.0.1:1/v1", "secret")


def test_an_async_function_runs_on_the_loop() -> None:
    async def solve(task: Task, client: Client, *, times: int) -> float:
        return times * float(task.answer) + len(client.key)

    assert asyncio.run(Solve(solve, {"times": 2}, "environment.function").solve(TASK, CLIENT)) == 16.0


def test_plain_functions_run_beside_the_loop_and_each_other() -> None:
    both = threading.Barrier(2, timeout=20.0)

    def solve(task: Task, client: Client) -> float:
        both.wait()
        return float(task.answer)

    async def solve_twice() -> list[float]:
        program = Solve(solve, {}, "environment.function")
        return await asyncio.gather(program.solve(TASK, CLIENT), program.solve(TASK, CLIENT))

    assert asyncio.run(solve_twice()) == [5.0, 5.0]


def test_a_cancelled_plain_function_is_waited_for() -> None:
    begun, released, ended = threading.Event(), threading.Event(), threading.Event()

    def solve(task: Task, client: Client) -> None:
        begun.set()
        released.wait(20.0)
        ended.set()

    async def cancel() -> None:
        running = asyncio.ensure_future(Solve(solve, {}, "environment.function").solve(TASK, CLIENT))
        await asyncio.to_thread(begun.wait, 20.0)
        running.cancel()
        await asyncio.sleep(0)
        released.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended.is_set()

    asyncio.run(cancel())


def test_options_that_it_does_not_take_are_refused() -> None:
    async def solve(task: Task, client: Client) -> None: ...

    with pytest.raises(ConfigError, match=r"cannot be called with environment\.options: .*'depth'"):
        Solve(solve, {"depth": 3}, "environment.function 'a.py:solve'")
