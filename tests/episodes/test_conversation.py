"""Turns of the policy, within the limits of the episode."""

import asyncio
from collections.abc import Callable, Coroutine
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from asyncrl.engine import Completion, Request
from asyncrl.episodes.conversation import Conversation, EpisodeOver, Sample
from asyncrl.episodes.pictures import EpisodePictures, PictureLimits
from asyncrl.episodes.record import (
    EpisodeLimits,
    EpisodeRecord,
    EpisodeState,
    RecordedTurn,
    TurnContext,
    as_sampled,
    read,
)
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Image, Sampling, Span
from tests.episodes.stage import WordBoundary, WordEngine, ids


def a_conversation(
    sample: Sample,
    *,
    max_turns: int = 8,
    max_tokens: int = 100,
    turn_tokens: int = 10,
    seed: int | None = 7,
    on_turn: Callable[[], None] = lambda: None,
) -> Conversation:
    return Conversation(
        EpisodeRecord(ids("how many")),
        sample,
        WordBoundary(),
        sampling=Sampling(turn_tokens),
        limits=EpisodeLimits(max_turns=max_turns, max_tokens=max_tokens),
        seed=seed,
        on_turn=on_turn,
    )


class Holding:
    """An engine whose requests wait; each is answered with as many words as it may have."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.released = asyncio.Event()

    async def sample(self, request: Request) -> Completion:
        self.requests.append(request)
        await self.released.wait()
        return await WordEngine(lambda _: "a " * request.sampling.max_tokens).sample(request)


def talkative(length: int) -> WordEngine:
    return WordEngine(lambda _: "a " * length)


async def settled(conversation: Conversation, *turns: Coroutine[object, object, int]) -> list[asyncio.Task[int]]:
    """Turns that wait in the engine."""
    tasks = [asyncio.create_task(turn) for turn in turns]
    await asyncio.sleep(0)
    return tasks


def test_a_turn_reads_all_before_it_and_is_recorded_with_its_text() -> None:
    told: list[int] = []
    engine = WordEngine(lambda before: f"read {len(before.split())}")
    conversation = a_conversation(engine.sample, on_turn=lambda: told.append(len(conversation.record.turns)))

    async def scene() -> None:
        assert await conversation.say(TurnContext(FROM_PROMPT)) == 0
        assert await conversation.say(TurnContext(0, ids("left 2"))) == 1
        assert await conversation.say(TurnContext(0, ids("left 2")), observation="as it was said") == 2

    asyncio.run(scene())
    assert [(turn.parent, turn.observation, turn.text) for turn in conversation.record.turns] == [
        (FROM_PROMPT, "", "read 2"),
        (0, "left 2", "read 6"),
        (0, "as it was said", "read 6"),
    ]
    assert engine.requests[1].prompt_ids == ids("how many read 2 left 2")
    assert told == [1, 2, 3]


def test_a_turn_may_have_fewer_tokens_than_the_run_allows_but_not_more() -> None:
    engine = talkative(50)
    conversation = a_conversation(engine.sample)

    async def scene() -> None:
        await conversation.say(TurnContext(FROM_PROMPT), max_tokens=3)
        await conversation.say(TurnContext(0), max_tokens=30)

    asyncio.run(scene())
    assert [turn.completion.finish_reason for turn in conversation.record.turns] == ["length", "length"]
    assert [len(turn.completion.completion_ids) for turn in conversation.record.turns] == [3, 10]


def test_the_last_turn_has_what_is_left_of_the_episode_and_then_it_is_over() -> None:
    conversation = a_conversation(talkative(50).sample, max_tokens=15)

    async def scene() -> None:
        await conversation.say(TurnContext(FROM_PROMPT))
        await conversation.say(TurnContext(0, ids("x y")))
        assert len(conversation.record.turns[1].completion.completion_ids) == 3
        with pytest.raises(EpisodeOver, match=r"environment\.max_tokens is reached") as over:
            await conversation.say(TurnContext(1))
        assert over.value.limit == "max_tokens"

    asyncio.run(scene())


def test_a_context_that_leaves_no_room_ends_the_episode_and_is_not_recorded() -> None:
    conversation = a_conversation(talkative(1).sample, max_tokens=4)

    async def scene() -> None:
        with pytest.raises(EpisodeOver):
            await conversation.say(TurnContext(FROM_PROMPT, ids("a b c d")))
        assert await conversation.say(TurnContext(FROM_PROMPT, ids("a b c"))) == 0

    asyncio.run(scene())
    assert conversation.record.num_tokens == 4


def test_turns_of_all_branches_count_for_the_limit() -> None:
    conversation = a_conversation(talkative(1).sample, max_turns=2)

    async def scene() -> None:
        await conversation.say(TurnContext(FROM_PROMPT))
        await conversation.say(TurnContext(FROM_NOTHING, ids("x")))
        with pytest.raises(EpisodeOver, match="max_turns"):
            await conversation.say(TurnContext(0))

    asyncio.run(scene())


def test_turns_that_run_together_leave_room_for_each_other() -> None:
    engine = Holding()
    conversation = a_conversation(engine.sample, max_tokens=24, max_turns=3)

    async def scene() -> None:
        tasks = await settled(
            conversation,
            conversation.say(TurnContext(FROM_PROMPT)),
            conversation.say(TurnContext(FROM_PROMPT, ids("x y"))),
            conversation.say(TurnContext(FROM_PROMPT)),
        )
        assert [request.sampling.max_tokens for request in engine.requests] == [10, 10, 2]
        with pytest.raises(EpisodeOver, match="max_turns"):
            await conversation.say(TurnContext(FROM_PROMPT))
        engine.released.set()
        assert sorted([await task for task in tasks]) == [0, 1, 2]

    asyncio.run(scene())
    assert conversation.record.num_tokens == 24


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12), st.booleans()), max_size=12),
    st.integers(1, 60),
    st.integers(1, 6),
)
def test_no_order_of_turns_exceeds_the_limits(
    turns: list[tuple[int, int, bool]], max_tokens: int, max_turns: int
) -> None:
    """Each turn has so much context, asks for so many tokens, and waits for the turns before it or not."""

    async def scene() -> None:
        engine = Holding()
        engine.released.set()
        conversation = a_conversation(engine.sample, max_tokens=max_tokens, max_turns=max_turns)
        tasks: list[asyncio.Task[int]] = []
        for num_context, most, is_waiting in turns:
            if is_waiting:
                await asyncio.gather(*tasks, return_exceptions=True)
            say = conversation.say(TurnContext(FROM_PROMPT, [0] * num_context), max_tokens=most)
            tasks += await settled(conversation, say)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, int | EpisodeOver) for one in ended)
        assert conversation.record.num_tokens <= max_tokens
        assert len(conversation.record.turns) == sum(isinstance(one, int) for one in ended) <= max_turns

    asyncio.run(scene())


def test_every_turn_has_a_seed_of_its_own_also_after_one_was_cancelled() -> None:
    engine = Holding()
    conversation = a_conversation(engine.sample)

    async def scene() -> None:
        first, _ = await settled(
            conversation, conversation.say(TurnContext(FROM_PROMPT)), conversation.say(TurnContext(FROM_PROMPT))
        )
        first.cancel()
        await settled(conversation, conversation.say(TurnContext(FROM_PROMPT)))
        engine.released.set()
        await settled(conversation, conversation.say(TurnContext(FROM_PROMPT)))

    asyncio.run(scene())
    seeds = [request.seed for request in engine.requests]
    assert len(seeds) == len(set(seeds)) == 4
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)


def test_a_turn_has_the_same_seed_in_an_episode_that_is_continued() -> None:
    whole, rest = talkative(1), talkative(1)

    async def scene() -> None:
        before = a_conversation(whole.sample)
        await before.say(TurnContext(FROM_PROMPT))
        await before.say(TurnContext(0))
        after = a_conversation(rest.sample)
        after.record.add(before.record.turns[0])
        await after.say(TurnContext(0))

    asyncio.run(scene())
    assert rest.requests[0].seed == whole.requests[1].seed


def test_a_branch_that_was_lost_is_sampled_again_with_its_own_seed_and_no_other_has_it() -> None:
    engine, again = Holding(), talkative(1)

    async def scene() -> None:
        before = a_conversation(engine.sample)
        lost, _ = await settled(before, before.say(TurnContext(FROM_PROMPT)), before.say(TurnContext(FROM_PROMPT)))
        lost.cancel()
        engine.released.set()
        await settled(before)
        await settled(before)
        stored = as_sampled(before.record, [], EpisodeState(num_finished=1))
        assert stored
        after = a_conversation(again.sample)
        after.reserve(read(stored).finished)
        await after.say(TurnContext(FROM_PROMPT))
        after.record.add(read(stored).finished[0])
        await after.say(TurnContext(FROM_PROMPT))

    asyncio.run(scene())
    first, second = (request.seed for request in engine.requests)
    assert again.requests[0].seed == first
    assert again.requests[1].seed not in {first, second}


@given(st.data())
def test_no_two_turns_share_draws_however_nodes_are_lost(data: st.DataObject) -> None:
    """Turns begin, end in any order, and every now and then what runs is lost with its node, or goes on as it began."""

    async def scene() -> None:
        record, unfinished = EpisodeRecord(ids("how many")), list[RecordedTurn]()
        for _ in range(data.draw(st.integers(1, 4), label="nodes")):
            engines: list[Holding] = []

            async def sample(request: Request, engines: list[Holding] = engines) -> Completion:
                engines.append(Holding())
                return await engines[-1].sample(request)

            talk = a_conversation(sample, max_turns=99, max_tokens=999)
            talk.reserve([*record.turns, *unfinished])
            for turn in record.turns:
                talk.record.add(turn)
            num_new = data.draw(st.integers(0, 3), label="begin")
            begun = [talk.say(turn.context, begun=turn) for turn in unfinished]
            begun += [talk.say(TurnContext(FROM_PROMPT)) for _ in range(num_new)]
            tasks = await settled(talk, *begun)
            for engine in engines:
                if data.draw(st.booleans(), label="ends"):
                    engine.released.set()
            for _ in range(3):
                await asyncio.sleep(0)
            parts = [RecordedTurn(one.context.parent, [], PART, draw=one.draw) for one in talk.running]
            kept = [part for part in parts if data.draw(st.booleans(), label="its beginning was stored")]
            stored = as_sampled(talk.record, kept, EpisodeState(num_finished=len(talk.record.turns)))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            resumed = read(stored) if stored else None
            record = EpisodeRecord(ids("how many"), resumed.finished if resumed else [])
            unfinished = list(resumed.begun) if resumed else []
            draws = [turn.draw for turn in (*record.turns, *unfinished)]
            assert len(draws) == len(set(draws))

    asyncio.run(scene())


PART = Completion(
    completion_ids=[1], behavior_logprobs=[-0.5], spans=[Span(0, 0, 1)], finish_reason="unfinished", generate_s=0.0
)


def test_without_a_seed_the_engine_draws() -> None:
    engine = talkative(1)
    asyncio.run(a_conversation(engine.sample, seed=None).say(TurnContext(FROM_PROMPT)))
    assert engine.requests[0].seed is None


def test_a_cancelled_turn_leaves_nothing() -> None:
    engine = Holding()
    conversation = a_conversation(engine.sample, max_tokens=10)

    async def scene() -> None:
        (turn,) = await settled(conversation, conversation.say(TurnContext(FROM_PROMPT, ids("x"))))
        assert [running.context for running in conversation.running] == [TurnContext(FROM_PROMPT, ids("x"))]
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert (conversation.running, conversation.record.turns) == ([], [])
        engine.released.set()
        assert await conversation.say(TurnContext(FROM_PROMPT)) == 0

    asyncio.run(scene())
    assert engine.requests[1].sampling.max_tokens == 10, "its room is free again"


def test_a_turn_that_the_engine_fails_leaves_nothing() -> None:
    async def failing(request: Request) -> Completion:
        raise EngineError("out of memory")

    conversation = a_conversation(failing)
    with pytest.raises(EngineError, match="out of memory"):
        asyncio.run(conversation.say(TurnContext(FROM_PROMPT)))
    assert (conversation.running, conversation.record.turns) == ([], [])


def test_a_turn_reads_the_pictures_of_its_path_in_the_order_of_their_tokens() -> None:
    engine = talkative(1)
    prompt, one, two = (Image(sha256(file).digest(), 8, 8, len(file)) for file in (b"prompt", b"one", b"two"))
    conversation = a_conversation(engine.sample)
    shown = {image.digest: file for image, file in ((one, b"one"), (two, b"two"))}
    conversation.pictures = EpisodePictures(PictureLimits(9, 99), [prompt], [b"prompt"], shown)
    conversation.record.prompt_images = [prompt]

    async def scene() -> None:
        await conversation.say(TurnContext(FROM_PROMPT))
        await conversation.say(TurnContext(0, ids("x"), [one]))
        await conversation.say(TurnContext(1, ids("x"), [two]))
        await conversation.say(TurnContext(FROM_NOTHING, ids("x"), [two]))
        await conversation.say(TurnContext(3))

    asyncio.run(scene())
    files = [request.images for request in engine.requests]
    assert files == [(b"prompt",), (b"prompt", b"one"), (b"prompt", b"one", b"two"), (b"two",), (b"two",)]
    assert [turn.images for turn in conversation.record.turns] == [[], [one], [two], [two], []]


def test_an_engine_that_read_other_pictures_than_it_was_given_is_a_failure() -> None:
    async def blind(request: Request) -> Completion:
        return replace(await talkative(1).sample(request), grids=[(1, 2, 2)])

    with pytest.raises(EngineError, match="returned 1 grids of 0 pictures"):
        asyncio.run(a_conversation(blind).say(TurnContext(FROM_PROMPT)))
