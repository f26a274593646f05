"""Trajectories of a rollout, from the lease until they are settled, without links or messages."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from asyncrl.engine import Completion, Request
from asyncrl.episodes.record import SampledTrajectory
from asyncrl.errors import EngineError, PromptTooLong
from asyncrl.messages.rollout import Failed, Lease, Leased
from asyncrl.messages.session import Held
from asyncrl.messages.trajectory import Image, Prompt, Sampling, Span, Unit
from asyncrl.messages.words import Activity, Truncation
from asyncrl.rollout.engine_calls import EngineCalls
from asyncrl.rollout.generations import Generations, SingleCompletion, StartGate, fit
from asyncrl.rollout.user_requests import UserRequests
from asyncrl.testing import LOGPROB, FakeEngine
from asyncrl.wire.occupancy import Occupancy

LEASE = Lease(
    lease_id=7,
    group_id=3,
    indices=[0, 1],
    split="train",
    prompt=Prompt(text="how many"),
    sampling=Sampling(max_tokens=8),
    seed=100,
    max_prompt_tokens=4,
    expires_in_s=60.0,
)
FIRST, SECOND = Unit(3, 0), Unit(3, 1)
PREFIX = Completion(
    completion_ids=[0, 1],
    behavior_logprobs=[LOGPROB] * 2,
    spans=[Span(4, 0, 2)],
    finish_reason="unfinished",
    generate_s=1.0,
)


@dataclass
class Stage:
    engine: FakeEngine
    generations: Generations

    async def start(self, *indices: int, lease: Lease = LEASE) -> None:
        """Start these indices and wait until the engine has them."""
        for index in indices:
            self.generations.start(lease, index)
        await self.engine.started(len(self.engine.running) + len(indices))

    async def finish(self, index: int = 0) -> None:
        """Finish the request at ``index`` and wait until its task has ended."""
        self.generations.has_news.clear()
        self.engine.finish(index)
        await self.generations.has_news.wait()


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        engine = FakeEngine(policy_version=5)
        generations = Generations(engine, "r-0")
        generations.policy_version = 5
        async with asyncio.timeout(10):
            await scene(Stage(engine, generations))
            await generations.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


async def turns(count: int = 10) -> None:
    """Let every task run that can."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_generation_runs_until_it_is_unsettled_and_is_held_until_it_is_forgotten() -> None:
    async def scene(stage: Stage) -> None:
        await stage.start(0)
        stage.engine.write(3)
        await stage.finish()
        (item,) = stage.generations.unsettled
        assert (item.unit, item.lease_id, item.summary.num_tokens) == (FIRST, 7, 3)
        assert stage.generations.holds(Leased(FIRST, 7))
        assert not stage.generations.holds(Leased(FIRST, 8))
        assert stage.generations.forget(FIRST)
        assert not stage.generations.forget(FIRST), "a credit is returned once"
        assert not stage.generations.unsettled

    play(scene)


def test_a_lease_is_encoded_once() -> None:
    async def scene(stage: Stage) -> None:
        calls = 0
        encode = stage.engine.encode

        def counting(prompt: Prompt) -> list[int]:
            nonlocal calls
            calls += 1
            return encode(prompt)

        stage.engine.encode = counting  # type: ignore[method-assign]
        await stage.start(0, 1)
        assert calls == 1

    play(scene)


def test_a_greedy_index_ignores_temperature_and_filters() -> None:
    async def scene(stage: Stage) -> None:
        sampling = Sampling(max_tokens=8, temperature=0.7, top_p=0.9, top_k=20)
        await stage.start(0, 1, lease=replace(LEASE, sampling=sampling, greedy=[1]))
        assert [request.sampling for request in stage.engine.requests] == [
            sampling,
            Sampling(max_tokens=8, temperature=0.0),
        ]

    play(scene)


def test_units_of_a_lease_are_those_running_or_unsettled() -> None:
    async def scene(stage: Stage) -> None:
        await stage.start(0, 1)
        await stage.start(0, lease=replace(LEASE, lease_id=8, group_id=4))
        assert stage.generations.units_of({7, 9}) == [FIRST, SECOND]

    play(scene)


def test_a_failure_waits_for_the_broker_and_is_dropped_by_a_new_session() -> None:
    async def scene(stage: Stage) -> None:
        await stage.start(0)
        stage.engine.fail(EngineError("out of memory", retryable=False))
        await stage.generations.has_news.wait()
        (failed,) = stage.generations.reports
        assert isinstance(failed, Failed)
        assert (failed.unit, failed.lease_id, failed.reason, failed.retryable) == (FIRST, 7, "out of memory", False)
        assert stage.generations.begin_session() == []
        assert stage.generations.reports == []

    play(scene)


def test_a_new_session_holds_running_and_unsettled_trajectories_with_their_oldest_versions() -> None:
    async def scene(stage: Stage) -> None:
        await stage.start(0, 1)
        stage.engine.running[0].write(1, policy_version=2)
        stage.engine.write(1)
        await stage.finish(index=0)
        await stage.start(2)
        stage.generations.unsettled.take_fresh()
        assert stage.generations.begin_session() == [Held(FIRST, 7, 2), Held(SECOND, 7, 5), Held(Unit(3, 2), 7, 5)]
        assert [item.unit for item in stage.generations.unsettled.take_fresh()] == [FIRST], "it is put again"

    play(scene)


def test_a_generation_that_waits_for_its_prefix_is_dropped_by_a_new_session() -> None:
    async def scene(stage: Stage) -> None:
        async def fetch() -> SampledTrajectory:
            await asyncio.Event().wait()
            return SampledTrajectory(prompt_ids=[], completion=PREFIX)

        stage.generations.start(LEASE, 0, fetch)
        await turns()
        assert stage.generations.begin_session() == []
        await turns()

    play(scene)


def test_a_resumed_generation_counts_its_own_tokens_only() -> None:
    async def scene(stage: Stage) -> None:
        async def fetch() -> SampledTrajectory:
            return SampledTrajectory(prompt_ids=[], completion=PREFIX)

        stage.generations.start(LEASE, 1, fetch)
        await stage.engine.started(1)
        stage.engine.write(3)
        await stage.finish()
        (item,) = stage.generations.unsettled
        assert (item.summary.num_tokens, item.summary.oldest_version) == (5, 4)
        assert stage.generations.calls.num_tokens == 3

    play(scene)


def test_progress_has_each_new_token_once() -> None:
    async def scene(stage: Stage) -> None:
        await stage.start(0, 1)
        assert stage.generations.progress() == []
        stage.engine.running[1].write(2, policy_version=5)
        assert [(item.unit, item.summary.num_tokens) for item in stage.generations.progress()] == [(SECOND, 2)]
        assert stage.generations.progress() == []
        assert not stage.generations.unsettled, "progress needs no settling"

    play(scene)


def test_handing_over_while_new_weights_come_leaves_the_engine_paused_for_them() -> None:
    async def scene(stage: Stage) -> None:
        await stage.start(0)
        stage.engine.running[0].write(2, policy_version=5)
        await stage.engine.pause()
        await stage.generations.hand_over(is_swapping=lambda: True)
        assert "resume" not in stage.engine.calls
        await stage.engine.swap(6, {})
        await turns()
        assert [item.unit for item in stage.generations.unsettled] == [FIRST]

    play(scene)


def test_handing_over_leaves_only_trajectories_that_have_tokens() -> None:
    async def scene(stage: Stage) -> None:
        await stage.start(0, 1)
        stage.engine.running[0].write(2, policy_version=5)
        stage.generations.progress()
        await stage.generations.hand_over()
        (item,) = stage.generations.unsettled
        assert (item.unit, item.summary.num_tokens, item.summary.finish_reason) == (FIRST, 2, "unfinished")
        assert stage.engine.calls == ["pause", "resume"]
        settled = asyncio.create_task(stage.generations.wait_until_settled())
        await turns()
        assert not settled.done()
        stage.generations.settle_unfinished(Leased(FIRST, 7))
        await settled

    play(scene)


def test_requests_held_back_start_after_the_running_ones_have_finished() -> None:
    async def scene(stage: Stage) -> None:
        await stage.start(0)
        idle = asyncio.create_task(stage.generations.finish_running())
        await turns()
        stage.generations.start(LEASE, 1)
        await turns()
        assert (len(stage.engine.requests), idle.done()) == (1, False)
        stage.engine.write(1)
        await stage.finish()
        await idle
        assert len(stage.engine.requests) == 1
        stage.generations.allow_starts()
        await stage.engine.started(1)

    play(scene)


def test_an_error_that_is_no_engine_error_is_fatal() -> None:
    async def scene(stage: Stage) -> None:
        await stage.start(0)
        stage.engine.running[0].done.set_exception(ZeroDivisionError("in the engine"))
        await turns()
        assert isinstance(stage.generations.fatal_error, ZeroDivisionError)
        assert stage.generations.has_news.is_set()
        assert not stage.generations.reports

    play(scene)


@pytest.mark.parametrize("num_tokens", [0, 2])
def test_forgetting_a_running_generation_frees_its_slot(num_tokens: int) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start(0)
        if num_tokens:
            stage.engine.write(num_tokens)
        assert stage.generations.forget(FIRST)
        await turns()
        assert stage.engine.running == []
        assert not stage.generations.unsettled

    play(scene)


def play_with_users(scene: Callable[[Stage, UserRequests], Awaitable[None]]) -> None:
    async def watched(stage: Stage) -> None:
        stage.generations.watch_users()
        await scene(stage, stage.generations.users)

    play(watched)


def test_a_users_request_takes_all_requests_out_of_the_engine_and_they_continue_with_their_tokens() -> None:
    async def scene(stage: Stage, users: UserRequests) -> None:
        await stage.start(0, 1)
        stage.engine.write(2)
        with users.request():
            await turns()
            assert stage.engine.running == []
            assert stage.generations.num_in_hand == 2
        await stage.engine.started(2)
        assert [request.resume_from and request.resume_from.completion_ids for request in stage.engine.requests] == [
            *(None, None),
            *([0, 1], [0, 1]),
        ]
        stage.engine.policy_version = 6
        stage.engine.write(3)
        await stage.finish()
        (item,) = stage.generations.unsettled
        assert (item.summary.num_tokens, item.summary.oldest_version) == (5, 5)
        assert stage.generations.calls.num_tokens == 5, "each token is counted once"

    play_with_users(scene)


def test_a_request_without_tokens_starts_again_and_one_that_has_just_ended_is_kept() -> None:
    async def scene(stage: Stage, users: UserRequests) -> None:
        await stage.start(0, 1)
        stage.engine.running[0].write(4, policy_version=5)
        stage.engine.finish(0)
        with users.request():
            await turns()
            assert [item.unit for item in stage.generations.unsettled] == [FIRST]
            assert stage.engine.running == []
        await stage.engine.started(1)
        assert stage.engine.requests[-1].resume_from is None

    play_with_users(scene)


def test_no_generation_starts_while_users_have_requests_in_hand_and_waiting_is_no_work() -> None:
    async def scene(stage: Stage, users: UserRequests) -> None:
        with users.request():
            stage.generations.start(LEASE, 0)
            await turns()
            assert stage.engine.requests == []
            assert stage.generations.occupancy.num_active("sampling") == 0
        await stage.engine.started(1)
        assert stage.generations.occupancy.num_active("sampling") == 1

    play_with_users(scene)


def test_a_generation_can_be_cancelled_handed_over_and_reported_while_it_makes_way() -> None:
    async def scene(stage: Stage, users: UserRequests) -> None:
        await stage.start(0, 1)
        stage.engine.write(2)
        with users.request():
            assert stage.generations.forget(FIRST), "in the same turn as the interruption"
            await turns()
            assert stage.generations.begin_session() == [Held(SECOND, 7, 5)]
            (item,) = stage.generations.progress()
            assert (item.unit, item.summary.num_tokens) == (SECOND, 2)
            await stage.generations.hand_over()
            (item,) = stage.generations.unsettled
            assert (item.unit, item.summary.num_tokens, item.summary.finish_reason) == (SECOND, 2, "unfinished")
        await turns()
        assert stage.engine.running == []

    play_with_users(scene)


def test_new_weights_that_wait_for_running_completions_wait_for_those_that_make_way() -> None:
    async def scene(stage: Stage, users: UserRequests) -> None:
        await stage.start(0)
        stage.engine.write(2)
        with users.request():
            await turns()
            finishing = asyncio.create_task(stage.generations.finish_running())
            await turns()
            assert not finishing.done()
        await stage.engine.started(1)
        await stage.finish()
        await finishing

    play_with_users(scene)


def test_an_engine_that_fails_amid_a_users_request_ends_the_rollout_and_not_the_request() -> None:
    async def scene(stage: Stage, users: UserRequests) -> None:
        def written(request: Request) -> Completion | None:
            raise KeyError("slot 3")

        await stage.start(0)
        stage.engine.written = written  # type: ignore[method-assign]
        with users.request():
            pass
        assert isinstance(stage.generations.fatal_error, KeyError)

    play_with_users(scene)


class Spools:
    """Links that answer each picture when the test says so."""

    def __init__(self) -> None:
        self.requested: list[tuple[Image, asyncio.Future[memoryview | None]]] = []

    def request(self, image: Image, *, waits: bool) -> asyncio.Future[memoryview | None]:
        assert waits
        self.requested.append((image, asyncio.get_running_loop().create_future()))
        return self.requested[-1][1]


RED = Image(hashlib.sha256(b"red").digest(), 8, 8, 3)
PICTURED = replace(LEASE, prompt=Prompt(text="<image> how", images=[RED]), max_prompt_tokens=9)


def test_a_group_fetches_its_pictures_once_and_its_requests_have_the_files() -> None:
    async def scene(stage: Stage) -> None:
        spools: Any = Spools()
        stage.generations.images.connect(spools)
        for index in PICTURED.indices:
            stage.generations.start(PICTURED, index)
        await turns()
        ((image, payload),) = spools.requested
        assert image == RED
        payload.set_result(memoryview(b"red"))
        await stage.engine.started(2)
        assert [request.images for request in stage.engine.requests] == [(b"red",)] * 2

    play(scene)


def test_a_generation_that_waits_for_a_picture_goes_on_in_the_next_session() -> None:
    async def scene(stage: Stage) -> None:
        first, second = Spools(), Spools()
        links: Any = first, second
        stage.generations.images.connect(links[0])
        stage.generations.start(PICTURED, 0)
        await turns()
        assert stage.generations.begin_session() == [Held(FIRST, 7, 5)]
        stage.generations.images.connect(links[1])
        second.requested[0][1].set_result(memoryview(b"red"))
        await stage.engine.started(1)

    play(scene)


def test_a_picture_that_the_run_does_not_have_is_a_failure_of_the_generation() -> None:
    async def scene(stage: Stage) -> None:
        spools: Any = Spools()
        stage.generations.images.connect(spools)
        stage.generations.start(PICTURED, 0)
        await turns()
        spools.requested[0][1].set_result(memoryview(b""))
        await stage.generations.has_news.wait()
        (failed,) = stage.generations.reports
        assert failed.reason.startswith(f"cannot fetch the pictures of the prompt: the picture {RED.digest.hex()[:12]}")

    play(scene)


# ── test prompt truncation ────────────────────────────────────────────────────────────────────

TEN = list(range(10))


@pytest.mark.parametrize(
    ("truncation", "max_tokens", "kept"),
    [
        ("left", 5, [5, 6, 7, 8, 9]),
        ("right", 5, [0, 1, 2, 3, 4]),
        ("middle", 5, [0, 1, 7, 8, 9]),
        ("middle", 4, [0, 1, 8, 9]),
        ("middle", 1, [9]),
        ("left", 1, [9]),
        ("right", 1, [0]),
    ],
)
def test_what_is_kept(truncation: Truncation, max_tokens: int, kept: list[int]) -> None:
    assert fit(TEN, max_tokens, truncation) == kept


def test_nothing_is_cut_where_that_is_an_error() -> None:
    with pytest.raises(
        PromptTooLong, match=r"the prompt has 10 tokens, more than data\.max_prompt_tokens = 9"
    ) as caught:
        fit(TEN, 9, "error")
    assert not caught.value.retryable


@pytest.mark.parametrize("truncation", ["left", "right", "middle", "error"])
def test_a_prompt_with_pictures_is_not_cut(truncation: Truncation) -> None:
    assert fit(TEN, 10, truncation, has_images=True) == TEN
    with pytest.raises(PromptTooLong, match=r"10 tokens with its pictures, .* and pictures cannot be truncated"):
        fit(TEN, 9, truncation, has_images=True)


@given(st.lists(st.integers(0, 99), max_size=40), st.integers(1, 40), st.sampled_from(["left", "right", "middle"]))
def test_a_prompt_has_exactly_as_many_tokens_as_fit(ids: list[int], most: int, truncation: Truncation) -> None:
    kept = fit(ids, most, truncation)

    assert len(kept) == min(len(ids), most)
    assert kept == ids or len(ids) > most


@given(st.lists(st.integers(0, 99), max_size=20), st.sampled_from(["error", "left", "right", "middle"]))
def test_a_prompt_that_fits_is_left_alone(ids: list[int], truncation: Truncation) -> None:
    assert fit(ids, max(len(ids), 1), truncation) == ids


# ── test single ───────────────────────────────────────────────────────────────────────────────
# One completion after its prompt.


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


# ── test start gate ───────────────────────────────────────────────────────────────────────────
# The gate that holds new work back before the weights change.


def test_a_closed_gate_waits_for_what_is_inside_and_holds_back_what_comes() -> None:
    async def scene() -> None:
        gate, passed, leave = StartGate(), [], asyncio.Event()

        async def work(name: str) -> None:
            async with gate.passing():
                passed.append(name)
                await leave.wait()

        first = asyncio.create_task(work("first"))
        await asyncio.sleep(0)
        emptied = asyncio.create_task(gate.empty())
        await asyncio.sleep(0)
        second = asyncio.create_task(work("second"))
        await asyncio.sleep(0)
        assert (passed, emptied.done()) == (["first"], False)
        leave.set()
        await emptied
        await first
        assert passed == ["first"], "the gate is closed until it is opened"
        gate.open()
        await second
        assert passed == ["first", "second"]

    asyncio.run(scene())


def test_work_that_fails_or_is_cancelled_has_left() -> None:
    async def scene() -> None:
        gate = StartGate()

        async def hang() -> None:
            async with gate.passing():
                await asyncio.Event().wait()

        task = asyncio.create_task(hang())
        await asyncio.sleep(0)
        task.cancel()
        await gate.empty()

    asyncio.run(scene())
