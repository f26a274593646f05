import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from asyncrl.workers import stacks
from asyncrl.workers.stacks import current_stacks


async def waits() -> None:
    await waits_for_a_thing_that_never_comes()


async def waits_for_a_thing_that_never_comes() -> None:
    await asyncio.Event().wait()


async def taken() -> str:
    task = asyncio.create_task(waits(), name="the waiting task")
    await asyncio.sleep(0)
    try:
        return current_stacks()
    finally:
        task.cancel()


def test_threads_and_tasks_are_named_with_the_line_they_are_at() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="the waiting thread")
    thread.start()
    try:
        text = asyncio.run(taken())
    finally:
        release.set()
        thread.join()
    assert "thread the waiting thread\n" in text
    task = text[text.index("task the waiting task") :]
    assert "in waits\n" in task
    assert "in waits_for_a_thing_that_never_comes\n    await asyncio.Event().wait()" in task


def test_the_main_thread_comes_first_and_idle_threads_of_pools_share_the_last_line() -> None:
    with ThreadPoolExecutor(1, "pool") as pool:
        pool.submit(int).result()
        texts = (asyncio.run(taken()) for _ in range(1000))
        text = next(text for text in texts if "thread pool_0\n" not in text)  # It is back at its queue by then.
    assert text.startswith("thread MainThread\n")
    assert text.splitlines()[-1].startswith("threads of pools that wait for work (")
    assert "pool_0" in text.splitlines()[-1]


def test_a_text_that_is_too_long_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "MAX_CHARS", 20)
    text = asyncio.run(taken())
    assert text.endswith(" more characters")
    assert len(text) < 60
