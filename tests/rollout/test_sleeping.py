import asyncio

import pytest

from asyncrl.errors import ConfigError
from asyncrl.messages.rollout import Lease
from asyncrl.messages.trajectory import Prompt, Sampling
from asyncrl.rollout.generations import Generations
from asyncrl.rollout.sleeping import Sleeper, require_sleeping
from asyncrl.testing import FakeEngine


def lease() -> Lease:
    return Lease(
        lease_id=1,
        group_id=0,
        indices=[0, 1],
        split="train",
        prompt=Prompt(text="one two"),
        sampling=Sampling(max_tokens=8),
        seed=1,
        max_prompt_tokens=10,
        expires_in_s=60.0,
    )


async def begun(engine: FakeEngine) -> Generations:
    generations = Generations(engine, "a")
    generations.watch_users()
    for index in (0, 1):
        generations.start(lease(), index)
    await engine.started(2)
    return generations


def test_running_requests_leave_the_engine_with_their_tokens_and_continue() -> None:
    async def main() -> None:
        engine = FakeEngine()
        generations = await begun(engine)
        sleeper = Sleeper(engine, generations)
        engine.write(3)

        assert await sleeper.sleep() == 1000
        assert engine.running == []
        assert engine.calls == ["pause", "sleep"]

        await sleeper.wake()
        await engine.started(2)
        assert engine.calls == ["pause", "sleep", "wake", "resume"]
        resumed = [running.request.resume_from for running in engine.running]
        assert [len(prefix.completion_ids) for prefix in resumed if prefix] == [3, 3]
        await generations.aclose()

    asyncio.run(main())


def test_running_requests_end_first_where_weights_may_not_change_in_the_middle() -> None:
    async def main() -> None:
        engine = FakeEngine()
        generations = await begun(engine)
        sleeper = Sleeper(engine, generations)
        engine.write(3)
        sleeping = asyncio.create_task(sleeper.sleep(finish=True))
        await asyncio.sleep(0)
        assert len(engine.running) == 2
        engine.finish()
        engine.finish()
        assert await sleeping == 1000
        assert len(generations.unsettled) == 2
        await generations.aclose()

    asyncio.run(main())


def test_leases_that_come_meanwhile_wait_for_the_engine() -> None:
    async def main() -> None:
        engine = FakeEngine()
        generations = Generations(engine, "a")
        generations.watch_users()
        sleeper = Sleeper(engine, generations)
        await sleeper.sleep()
        generations.start(lease(), 0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert engine.requests == []
        await sleeper.wake()
        await engine.started(1)
        await generations.aclose()

    asyncio.run(main())


def test_a_sleeping_engine_is_left_alone() -> None:
    async def main() -> None:
        engine = FakeEngine()
        generations = Generations(engine, "a")
        generations.watch_users()
        sleeper = Sleeper(engine, generations)
        await sleeper.sleep()
        assert await sleeper.sleep() == 0
        assert engine.calls == ["pause", "sleep"]
        await generations.aclose()

    asyncio.run(main())


def test_an_engine_that_cannot_sleep_is_refused_by_name() -> None:
    class Restless:
        pass

    with pytest.raises(ConfigError, match="Restless has no sleep and wake"):
        require_sleeping(Restless())  # type: ignore[arg-type]
