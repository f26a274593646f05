"""One episode on a worker, where it is not the worker that fails."""

import asyncio
from pathlib import Path

import pytest

from asyncrl.config.sections.environment import Environment
from asyncrl.episodes.pool import EnvironmentPool
from asyncrl.errors import EnvironmentFailed
from tests.episodes.environments.environments import said, task, written

pytestmark = pytest.mark.timeout(60)


def test_an_episode_that_was_closed_answers_no_more(tmp_path: Path) -> None:
    async def play() -> None:
        async with EnvironmentPool(Environment(function=f"{written(tmp_path)}:Boxes", workers=1), "run", "n") as pool:
            episode = pool.open("a")
            await episode.close()
            with pytest.raises(EnvironmentFailed, match="the episode was closed"):
                await episode.reset(task())
        with pytest.raises(EnvironmentFailed, match="were closed"):
            pool.open("b")

    asyncio.run(play())


def test_a_bad_value_is_one_clear_error_that_no_other_attempt_repairs(tmp_path: Path) -> None:
    async def play() -> EnvironmentFailed:
        async with EnvironmentPool(Environment(function=f"{written(tmp_path)}:Boxes", workers=1), "run", "n") as pool:
            episode = pool.open("a")
            await episode.reset(task())
            with pytest.raises(EnvironmentFailed, match="step returned None, expected a Step") as caught:
                await episode.step(said("nothing"))
            return caught.value

    assert not asyncio.run(play()).retryable


def test_cancelled_while_its_worker_starts_it_leaves_nothing_behind(tmp_path: Path) -> None:
    slow = "import time\ntime.sleep(0.5)\n" + written(tmp_path).read_text()

    async def play() -> int:
        environment = Environment(function=f"{written(tmp_path, slow)}:Plain", workers=1, call_s=1.0)
        async with EnvironmentPool(environment, "run", "n") as pool:
            first = pool.open("a")
            await first.reset(task())
            with pytest.raises(EnvironmentFailed):
                await first.step(said("exit"))
            second = pool.open("b")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await second.reset(task())
            await second.close()
            third = pool.open("c")
            await third.reset(task(seed=1))
            return len((await third.step(said())).messages)

    assert asyncio.run(play()) == 1
