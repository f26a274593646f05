"""One completion after its prompt."""

import asyncio

from asyncrl.actor.occupancy import Occupancy
from asyncrl.messages.trajectory import Sampling, Span
from asyncrl.messages.words import Activity
from asyncrl.rollout.engine import Completion, Request
from asyncrl.rollout.engine_calls import EngineCalls
from asyncrl.rollout.single import SingleCompletion
from asyncrl.rollout.user_requests import UserRequests
from asyncrl.testing import FakeEngine


def calls_of(engine: FakeEngine) -> EngineCalls:
    return EngineCalls(engine, UserRequests(), Occupancy[Activity](("sampling",)), end_with=print, changed=lambda: None)


def test_it_is_written_so_far_and_at_its_end_with_its_text() -> None:
    async def scene() -> None:
        engine = FakeEngine()
        work = SingleCompletion(engine, calls_of(engine), Request(prompt_ids=[5], sampling=Sampling(8), seed=1))
        assert work.written() is None
        running = asyncio.create_task(work.run())
        await engine.started(1)
        engine.write(2)
        written = work.written()
        assert written is not None
        assert (written.completion.completion_ids, written.text, written.turns) == ([0, 1], "", [])
        engine.write(1)
        engine.finish()
        assert (await running).text == "0 1 2"

    asyncio.run(scene())


def test_before_it_runs_it_has_what_it_resumes_from() -> None:
    begun = Completion(
        completion_ids=[0],
        behavior_logprobs=[-0.5],
        spans=[Span(3, 0, 1)],
        finish_reason="unfinished",
        generate_s=1.0,
    )
    engine = FakeEngine()
    request = Request(prompt_ids=[5], sampling=Sampling(8), seed=1, resume_from=begun)
    written = SingleCompletion(engine, calls_of(engine), request).written()
    assert written is not None
    assert written.completion is begun
