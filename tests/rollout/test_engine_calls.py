"""Steps of an engine, found from its completions alone."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from asyncrl.engine import Completion, Request
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import Sampling
from asyncrl.messages.words import Activity
from asyncrl.rollout.engine_calls import DecodeSteps, EngineCalls
from asyncrl.rollout.user_requests import UserRequests
from asyncrl.testing import FakeEngine
from asyncrl.wire.occupancy import Occupancy


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_completion_alone_takes_a_step_for_each_token() -> None:
    clock = Clock()
    steps = DecodeSteps(clock)
    began = steps.begin()
    clock.now_s = 2.0
    steps.end(began, 50)
    assert steps.number == pytest.approx(50)


def test_completions_that_run_together_share_their_steps() -> None:
    clock = Clock()
    steps = DecodeSteps(clock)
    began = [steps.begin() for _ in range(4)]
    clock.now_s = 2.0
    for each in began:
        steps.end(each, 50)
    assert steps.number == pytest.approx(50)


def test_one_that_goes_on_alone_takes_the_further_steps() -> None:
    """Both run for 1 s with 10 steps a second; then one runs alone for 2 s, also with 10 steps a second."""
    clock = Clock()
    steps = DecodeSteps(clock)
    short, long = steps.begin(), steps.begin()
    clock.now_s = 1.0
    steps.end(short, 10)
    clock.now_s = 3.0
    steps.end(long, 30)
    assert steps.number == pytest.approx(30)


def test_one_of_unknown_length_counts_no_steps_and_neither_does_one_without_time() -> None:
    clock = Clock()
    steps = DecodeSteps(clock)
    steps.end(steps.begin(), 5)
    began = steps.begin()
    clock.now_s = 1.0
    steps.end(began, 0)
    assert steps.number == 0.0


def test_seconds_without_a_completion_count_for_none() -> None:
    clock = Clock()
    steps = DecodeSteps(clock)
    clock.now_s = 100.0
    began = steps.begin()
    clock.now_s = 101.0
    steps.end(began, 10)
    assert steps.number == pytest.approx(10)


# ── test engine calls ─────────────────────────────────────────────────────────────────────────
# Requests of rollouts at an engine, with users who go first.


@dataclass
class Stage:
    engine: FakeEngine = field(default_factory=FakeEngine)
    users: UserRequests = field(default_factory=UserRequests)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.occupancy = Occupancy[Activity](("sampling",))
        self.calls = EngineCalls(
            self.engine, self.users, self.occupancy, end_with=self.errors.append, changed=lambda: None
        )
        self.users.watch(self.calls.make_way)

    async def start(self) -> tuple[Request, "asyncio.Task[Completion]"]:
        request = Request(prompt_ids=[5], sampling=Sampling(8), seed=1)
        task = asyncio.create_task(self.calls.complete(request))
        await self.engine.started(len(self.engine.running) + 1)
        return request, task


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await scene(Stage())

    asyncio.run(main())


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_requests_in_any_task_make_way_and_continue_with_their_tokens() -> None:
    async def scene(stage: Stage) -> None:
        (first, one), (_, two) = await stage.start(), await stage.start()
        stage.engine.write(2)
        with stage.users.request():
            await turns()
            assert stage.calls.is_outside
            assert not stage.engine.running
            assert stage.occupancy.num_active("sampling") == 0
            written = stage.calls.written(first)
            assert written is not None
            assert written.completion_ids == [0, 1]
        await stage.engine.started(2)
        assert [running.request.resume_from is not None for running in stage.engine.running] == [True, True]
        stage.engine.write(1)
        stage.engine.finish()
        stage.engine.finish()
        assert (await one).completion_ids == (await two).completion_ids == [0, 1, 2]
        assert stage.calls.num_tokens == 6, "each token is counted once"
        assert stage.calls.written(first) is None

    play(scene)


def test_a_cancelled_call_leaves_nothing_behind() -> None:
    async def scene(stage: Stage) -> None:
        request, task = await stage.start()
        stage.engine.write(1)
        task.cancel()
        await turns()
        assert stage.calls.written(request) is None
        assert not stage.engine.running
        assert stage.calls.num_tokens == 0

    play(scene)


def test_an_engine_that_cannot_tell_what_it_wrote_ends_the_node() -> None:
    async def scene(stage: Stage) -> None:
        _, task = await stage.start()

        def broken(request: Request) -> Completion:
            raise RuntimeError("no tokens")

        stage.engine.written = broken  # type: ignore[method-assign]
        with stage.users.request():
            await turns()
        assert {str(error) for error in stage.errors} == {"no tokens"}
        task.cancel()

    play(scene)


def test_a_completion_that_the_engine_calls_unfinished_is_refused() -> None:
    async def scene(stage: Stage) -> None:
        _, task = await stage.start()
        stage.engine.write(1)
        stage.engine.finish(finish_reason="unfinished")
        with pytest.raises(EngineError, match="unfinished"):
            await task

    play(scene)
