"""Active episodes of a node follow the load of its engine."""

import asyncio

from asyncrl.config.sections.environment import Environment
from asyncrl.messages.trajectory import Prompt, Sampling, Unit
from asyncrl.rollout.engine import EngineLoad
from asyncrl.rollout.episodes.concurrency import Concurrency
from asyncrl.rollout.episodes.episodes import Episodes
from asyncrl.rollout.episodes.pacing import adapt, paced
from tests.rollout.episodes.stage import StagedEnvironments, WordEngine, WordSeam, ids


class Measured:
    def __init__(self, *loads: EngineLoad) -> None:
        self.loads = list(loads)

    def measure(self) -> EngineLoad:
        return self.loads.pop(0) if len(self.loads) > 1 else self.loads[0]


QUIET = EngineLoad(kv_usage=0.1, num_preempted=0, num_running=4, num_waiting=0)
THRASHING = EngineLoad(kv_usage=0.99, num_preempted=500, num_running=4, num_waiting=9)


def make_episodes(most: int = 8) -> Episodes:
    environment = Environment(function="till.py:Till", max_turns=8, max_tokens=100)
    return Episodes(environment, StagedEnvironments(), WordSeam(), run="run", most=most)


def test_an_engine_that_preempts_gets_fewer_episodes() -> None:
    episodes = make_episodes()
    concurrency, engine = Concurrency(8, 8), Measured(QUIET, THRASHING)
    for now_s in range(0, 40, 2):
        adapt(episodes, engine, concurrency, float(now_s))
    assert episodes.gate.limit < 8


def test_an_engine_that_cannot_be_measured_leaves_all_episodes_active() -> None:
    async def scene() -> None:
        episodes = make_episodes()
        async with paced(episodes, object(), 2):
            assert episodes.gate.limit == 8

    asyncio.run(scene())


def test_the_load_is_followed_while_the_block_runs() -> None:
    async def scene() -> None:
        episodes, slept = make_episodes(), asyncio.Event()
        now_s = 0.0

        async def sleep(seconds: float) -> None:
            nonlocal now_s
            now_s += seconds
            if now_s > 60:
                slept.set()
                await asyncio.Event().wait()

        async with paced(episodes, Measured(QUIET, THRASHING), 6, clock=lambda: now_s, sleep=sleep):
            assert episodes.gate.limit == 6, "as many as there are slots, at first"
            await slept.wait()
            assert episodes.gate.limit < 6
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scene())


def test_an_episode_without_a_seat_waits_until_another_has_ended() -> None:
    async def scene() -> None:
        episodes, engine = make_episodes(most=1), WordEngine(lambda before: "word")

        async def play(index: int) -> int:
            episode = episodes.begin(
                Unit(0, index),
                Prompt(text="a", answer="2"),
                ids("a <policy>"),
                sample=engine.sample,
                written=engine.written,
                sampling=Sampling(4),
                seed=index,
            )
            return len((await episode.run()).turns)

        assert list(await asyncio.gather(play(0), play(1000))) == [2, 2]
        seeds = [request.seed for request in engine.requests]
        assert seeds.index(1000) == 2, "the second begins when the first has ended"
        assert not episodes.gate.active

    asyncio.run(scene())
