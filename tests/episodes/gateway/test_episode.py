import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from structlog.testing import capture_logs

from asyncrl.episodes.conversation import MALFORMED
from asyncrl.episodes.gateway.app import GatewayApp
from asyncrl.episodes.gateway.episode import Counts, EarlierTurns
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.episodes.gateway.request import ChatRequest, RefusedRequest
from asyncrl.episodes.record import EpisodeLimits, EpisodeRecord, RecordedTurn, TurnContext
from asyncrl.errors import EngineError, PromptTooLong
from asyncrl.messages.sound import turn_problem_of
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Trajectory, TrajectoryLimits, Unit
from tests.episodes.gateway.doubles import (
    END,
    Answer,
    Connection,
    Episode,
    call,
    chat,
    completion,
    sampled,
    shown,
    user,
)

SOUND = dict.fromkeys((*MALFORMED, "unenforced"), 0.0)


def test_metrics_tell_roots_that_a_program_did_not_intend() -> None:
    counts = Counts({"forks": 1, "roots": 3, "root_new_root": 1, "root_edited_reply": 1, "root_tools_changed": 1})
    assert counts.scores == {"forks": 1.0, "roots": 3.0, **SOUND, "broken_lineage": 2.0}


def test_an_episode_of_one_branch_has_zeros() -> None:
    assert Counts().scores == {"forks": 0.0, "roots": 0.0, **SOUND, "broken_lineage": 0.0}


# ── test earlier ──────────────────────────────────────────────────────────────────────────────


def turn(parent: int, context: list[int], text: str = "x") -> RecordedTurn:
    return RecordedTurn(parent, context, completion(sampled(text)))


def test_a_turn_is_found_by_what_the_policy_read() -> None:
    turns = [turn(FROM_PROMPT, []), turn(0, [5, 6])]
    earlier = EarlierTurns(turns)
    assert earlier.take(TurnContext(FROM_PROMPT, [7])) is None
    assert earlier.take(TurnContext(FROM_PROMPT)) == (0, turns[0])
    assert earlier.num_left == 1


def test_children_are_found_wherever_their_parent_is_in_the_new_record() -> None:
    turns = [turn(FROM_NOTHING, [1]), turn(FROM_NOTHING, [2]), turn(1, [5])]
    earlier = EarlierTurns(turns)
    assert earlier.take(TurnContext(FROM_NOTHING, [2])) == (1, turns[1])
    earlier.moved(1, 0)
    assert earlier.take(TurnContext(0, [5])) == (2, turns[2])


def test_a_turn_after_a_new_one_is_not_found() -> None:
    earlier = EarlierTurns([turn(FROM_PROMPT, []), turn(0, [5])])
    assert earlier.take(TurnContext(0, [5])) is None


def test_equal_turns_are_given_in_their_order_and_once() -> None:
    turns = [turn(FROM_PROMPT, [], text) for text in "ab"]
    earlier = EarlierTurns(turns)
    assert [earlier.take(TurnContext(FROM_PROMPT)) for _ in range(3)] == [(0, turns[0]), (1, turns[1]), None]


def test_without_an_earlier_run_there_is_nothing() -> None:
    assert (EarlierTurns().take(TurnContext(FROM_PROMPT)), EarlierTurns().num_left) == (None, 0)


# ── test episode ──────────────────────────────────────────────────────────────────────────────
# Turns of an episode whose program asks through the gateway, in process.

HI = [user("Hi")]
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALLS = 'I look.<tool_call>{"name": "look", "arguments": {"box": "a", "at": 1}}</tool_call>'


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await scene()

    asyncio.run(main())


def counting(before: str) -> str:
    """A policy that says how many messages it read."""
    return f"answer {before.count('<|im_start|>') - 1}"


def app_of(episode: Episode) -> GatewayApp:
    return GatewayApp(episode.gateway)


def parents(episode: Episode) -> list[int]:
    return [turn.parent for turn in episode.record.turns]


def trained(episode: Episode) -> list[bool]:
    return [turn.is_trained for turn in episode.record.turns]


# ── ids ─────────────────────────────────────────────────────────────────────────────────────


def test_the_first_turn_reads_the_tokens_of_the_prompt() -> None:
    async def scene() -> None:
        episode = Episode(counting)
        answer = await chat(app_of(episode), episode, HI)
        assert answer.message["content"] == "answer 1"
        assert episode.engine.requests[0].prompt_ids == episode.record.prompt_ids
        assert (parents(episode), episode.record.turns[0].context_ids) == ([FROM_PROMPT], [])

    play(scene)


def test_a_later_turn_reads_the_sampled_tokens_and_what_follows_them() -> None:
    async def scene() -> None:
        episode = Episode(counting)
        app = app_of(episode)
        first = await chat(app, episode, HI)
        await chat(app, episode, [*HI, first.message, user("more")])
        follows = [ord(char) for char in "\n"] + episode.boundary.opening([user("more")])
        assert episode.engine.requests[1].prompt_ids == [*episode.record.prompt_ids, *sampled("answer 1"), *follows]
        assert parents(episode) == [FROM_PROMPT, 0]

    play(scene)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.lists(st.text('ab ?\n"\\é𝄞', max_size=5), min_size=1, max_size=3), st.booleans()
        ),
        min_size=1,
        max_size=8,
    )
)
def test_every_turn_reads_recorded_ids_and_what_the_boundary_puts_after_them(
    moves: list[tuple[int, list[str], bool]],
) -> None:
    """The program goes back and forth in its chat; its client alters the form of messages, not their content."""

    async def scene() -> None:
        episode = Episode(lambda before: f" {len(before)} é\n", max_tokens=6)
        app = app_of(episode)
        chats = [HI]
        for back, contents, in_parts in moves:
            messages = chats[back % len(chats)]
            answer = await chat(app, episode, messages)
            said = answer.message
            if in_parts:
                parts = [{"type": "text", "text": part} for part in said["content"]]
                said = {"content": parts, "refusal": None, "role": "assistant"}
            chats.append([*messages, said, *map(user, contents)])
        for turn, request in zip(episode.record.turns, episode.engine.requests, strict=True):
            assert request.prompt_ids == [*episode.record.ids_through(turn.parent), *turn.context_ids]
            assert episode.record.root(turn.parent) == FROM_PROMPT
            if turn.parent >= 0:
                last_id = episode.record.turns[turn.parent].completion.completion_ids[-1]
                assert (turn.context_ids[0] == END) == (last_id != END)
        assert episode.open.counts["roots"] == 0

    play(scene)


def test_calls_of_tools_come_back_as_they_were_delivered() -> None:
    async def scene() -> None:
        episode = Episode(lambda before: "#### 5" if "+5" in before else CALLS, tools=json.dumps([LOOK]))
        app = app_of(episode)
        first = await chat(app, episode, HI, tools=[LOOK])
        call = first.message["tool_calls"][0]
        assert (first.message["content"], call["id"]) == ("I look.", "call_0_0")
        assert first.json["choices"][0]["finish_reason"] == "tool_calls"
        assert json.loads(call["function"]["arguments"]) == {"box": "a", "at": 1}
        call["function"]["arguments"] = '{"box": "a",   "at": 1}'  # as a client may write it
        said = {"role": "assistant", "tool_calls": [{"index": 0} | call], "content": "I look.", "refusal": None}
        tool = {"role": "tool", "content": "+5", "tool_call_id": "call_0_0"}
        second = await chat(app, episode, [*HI, said, tool], tools=[LOOK])
        assert (second.message["content"], parents(episode)) == ("#### 5", [FROM_PROMPT, 0])
        assert shown(episode.record.turns[1].context_ids) == "\n<|im_start|>tool\n+5<|im_end|>\n<|im_start|>assistant\n"

    play(scene)


def test_calls_alone_have_no_content() -> None:
    async def scene() -> None:
        episode = Episode(
            lambda _: '<tool_call>{"name": "look", "arguments": {}}</tool_call>', tools=json.dumps([LOOK])
        )
        assert (await chat(app_of(episode), episode, HI, tools=[LOOK])).message["content"] is None

    play(scene)


@pytest.mark.parametrize("text", ["<tool_call>{</tool_call>", '<tool_call>{"name": "look"}</tool_call>'])
def test_a_call_that_cannot_be_read_is_delivered_as_text(text: str) -> None:
    async def scene() -> None:
        episode = Episode(lambda _: text, tools=json.dumps([LOOK]))
        answer = await chat(app_of(episode), episode, HI, tools=[LOOK])
        assert (answer.message, answer.json["choices"][0]["finish_reason"]) == (
            {"role": "assistant", "content": text, "refusal": None},
            "stop",
        )

    play(scene)


# ── the same request, choices and forks ─────────────────────────────────────────────────────


def test_a_request_whose_reply_was_delivered_is_sampled_anew() -> None:
    async def scene() -> None:
        episode = Episode(counting)
        app = app_of(episode)
        first, again = await chat(app, episode, HI), await chat(app, episode, HI, temperature=0.3)
        assert first.json["id"] != again.json["id"]
        assert (parents(episode), trained(episode)) == ([FROM_PROMPT] * 2, [True] * 2)
        assert episode.open.counts["fork_retry"] == 1
        assert len({request.seed for request in episode.engine.requests}) == 2

    play(scene)


def test_equal_requests_at_the_same_time_are_different_samples() -> None:
    async def scene() -> None:
        episode = Episode(counting)
        first, second = await asyncio.gather(*(chat(app_of(episode), episode, HI) for _ in range(2)))
        assert first.json["id"] != second.json["id"]
        assert len({request.seed for request in episode.engine.requests}) == 2

    play(scene)


def test_a_reply_that_was_lost_on_its_way_is_given_once_to_who_asks_again() -> None:
    async def scene() -> None:
        episode = Episode(counting)
        episode.engine.may_write.clear()
        body = json.dumps({"messages": HI}).encode()
        lost = Connection(app_of(episode), "POST", f"{episode.path}/v1/chat/completions", body)
        losing = asyncio.create_task(lost.run())
        while not episode.engine.requests:
            await asyncio.sleep(0)
        lost.go_away()
        await losing
        again = asyncio.create_task(chat(app_of(episode), episode, HI))
        while not episode.open.counts["repeats"]:
            await asyncio.sleep(0)
        episode.engine.may_write.set()
        assert (await again).json["id"] == "chatcmpl-0"
        assert (len(episode.engine.requests), trained(episode)) == (1, [True])
        assert (await chat(app_of(episode), episode, HI)).json["id"] == "chatcmpl-1"

    play(scene)


def test_a_request_whose_body_comes_after_the_episode_is_over_samples_nothing() -> None:
    async def scene() -> None:
        episode = Episode(counting)
        app = app_of(episode)
        await episode.open.close()
        with pytest.raises(RefusedRequest, match="the episode is over"):
            episode.open.reply(ChatRequest(messages=HI))
        assert (await chat(app, episode, HI)).status == 404
        assert not episode.engine.requests

    play(scene)


def test_requests_whose_clients_went_away_are_not_held_without_end(monkeypatch) -> None:
    async def scene() -> None:
        episode = Episode(counting, limits=EpisodeLimits(max_turns=1, max_tokens=1000))
        await chat(app_of(episode), episode, HI)
        for number in range(20):
            body = json.dumps({"messages": [user(f"{number}")]}).encode()
            lost = Connection(app_of(episode), "POST", f"{episode.path}/v1/chat/completions", body)
            lost.go_away()
            await lost.run()
        await asyncio.sleep(0)
        assert not episode.open._lost

        episode = Episode(counting)
        episode.engine.may_write.clear()
        monkeypatch.setattr("asyncrl.episodes.gateway.episode.MOST_REPLIES", 3)
        waiting = [asyncio.create_task(chat(app_of(episode), episode, [user(f"{number}")])) for number in range(4)]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result().status for one in done] == [429]
        episode.engine.may_write.set()
        assert sorted([(await one).status for one in waiting]) == [200, 200, 200, 429]

    play(scene)


def test_a_history_rendered_again_has_each_turn_in_its_place() -> None:
    async def scene() -> None:
        episode = Episode(counting, gateway=Gateway("http://test", as_template=True))
        app = app_of(episode)
        messages = list(HI)
        for _ in range(4):
            answer = await chat(app, episode, messages)
            messages += [answer.message, user("more")]
        read = shown(episode.engine.requests[-1].prompt_ids)
        told = [message["content"] for message in messages[:-2]]
        places = [read.find(text) for text in told if text != "more"]
        assert places == sorted(places)
        assert -1 not in places

    play(scene)


def test_a_stop_of_the_request_ends_what_is_delivered_and_not_the_tokens() -> None:
    async def scene() -> None:
        episode = Episode(lambda _: "Thought: x\nObservation: y")
        answer = await chat(app_of(episode), episode, HI, stop=["\nObservation:"])
        assert answer.message["content"] == "Thought: x"
        assert answer.json["choices"][0]["finish_reason"] == "stop"
        assert episode.engine.requests[0].sampling.stop == ["\nObservation:"]
        sent = {"role": "assistant", "content": "Thought: x"}
        await chat(app_of(episode), episode, [*HI, sent, user("more")], stop=["\nObservation:"])
        assert parents(episode) == [FROM_PROMPT, 0]
        assert "Observation: y" in shown(episode.engine.requests[1].prompt_ids)

    play(scene)


def test_what_is_sent_again_by_mistake_is_told_once_it_uses_up_the_episode() -> None:
    async def scene() -> None:
        episode = Episode(counting, limits=EpisodeLimits(max_turns=100, max_tokens=1000))
        await chat(app_of(episode), episode, HI)
        with capture_logs() as logs:
            for number in range(8):
                edited = {"role": "assistant", "content": f"never said {number}"}
                await chat(app_of(episode), episode, [*HI, edited, user("more")])
        (alarm,) = [log for log in logs if log["event"] == "gateway.budget_eaten"]
        assert alarm["cause"] == "edited_reply"
        assert alarm["tokens"] > 250

    play(scene)


def test_choices_are_branches() -> None:
    async def scene() -> None:
        episode = Episode(counting)
        answer = await chat(app_of(episode), episode, HI, n=3)
        assert [choice["index"] for choice in answer.json["choices"]] == [0, 1, 2]
        assert (parents(episode), trained(episode)) == ([FROM_PROMPT] * 3, [True] * 3)
        assert episode.open.counts["fork_branch"] == 2
        assert len({request.seed for request in episode.engine.requests}) == 3

    play(scene)


def test_another_seed_is_another_branch() -> None:
    async def scene() -> None:
        episode = Episode(counting)
        for seed in (1, 2):
            await chat(app_of(episode), episode, HI, seed=seed)
        assert (parents(episode), episode.open.counts["fork_branch"]) == ([FROM_PROMPT] * 2, 1)

    play(scene)


def test_forks_are_counted_by_cause() -> None:
    async def scene() -> None:
        episode = Episode(counting)
        app = app_of(episode)
        first = await chat(app, episode, HI)
        for content in ("a", "b"):
            await chat(app, episode, [*HI, first.message, user(content)])
        await chat(app, episode, [*HI, first.message, user("b")], max_tokens=3)
        assert {name: num for name, num in episode.open.counts.items() if "fork" in name} == {
            "forks": 2, "fork_branch": 1, "fork_retry": 1,
        }  # fmt: skip
        assert episode.open.counts.scores == {"forks": 2.0, "roots": 0.0, **SOUND, "broken_lineage": 0.0}

    play(scene)


def test_a_new_root_reads_a_whole_chat_of_its_own() -> None:
    async def scene() -> None:
        episode = Episode(counting)
        app = app_of(episode)
        first = await chat(app, episode, HI)
        await chat(app, episode, [user("Summarise."), user(first.message["content"])])
        await chat(app, episode, [*HI, {"role": "assistant", "content": "never said"}, user("more")])
        assert parents(episode) == [FROM_PROMPT, FROM_NOTHING, FROM_NOTHING]
        assert shown(episode.engine.requests[1].prompt_ids).startswith("<|im_start|>user\nSummarise.")
        assert episode.gateway.counts["root_new_root"] == episode.gateway.counts["root_edited_reply"] == 1
        assert turn_problem_of_record(episode) == ""

    play(scene)


def turn_problem_of_record(episode: Episode) -> str:
    """Problem that the check of every trajectory finds."""
    record = episode.record
    context, written = record.context_ids(), record.completion("stop")
    trajectory = Trajectory(
        unit=Unit(0, 0),
        prompt_ids=memoryview(bytes(4 * len(record.prompt_ids))),
        completion_ids=memoryview(bytes(4 * len(written.completion_ids))),
        behavior_logprobs=memoryview(b""),
        spans=[],
        finish_reason="stop",
        text="",
        turns=record.wire_turns(),
        context_ids=memoryview(bytes(4 * len(context))),
        scores=episode.open.counts.scores,
    )
    return turn_problem_of(trajectory, TrajectoryLimits(max_prompt_tokens=100, max_tokens=100))


# ── limits and failures ─────────────────────────────────────────────────────────────────────


def test_max_tokens_of_the_request_lowers_that_of_the_run() -> None:
    async def scene() -> None:
        episode = Episode(counting, max_tokens=5)
        app = app_of(episode)
        cut = await chat(app, episode, HI, max_tokens=3)
        assert (cut.message["content"], cut.json["choices"][0]["finish_reason"]) == ("ans", "length")
        assert (await chat(app, episode, HI, max_tokens=50)).message["content"] == "answe"

    play(scene)


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (EpisodeLimits(max_turns=1, max_tokens=1000), "max_turns_exceeded"),
        (EpisodeLimits(max_turns=9, max_tokens=20), "context_length_exceeded"),
    ],
)
def test_a_limit_of_the_episode_is_told(limits: EpisodeLimits, code: str) -> None:
    async def scene() -> None:
        episode = Episode(counting, limits=limits)
        app = app_of(episode)
        first = await chat(app, episode, HI)
        second = await chat(app, episode, [*HI, first.message, user("more")])
        assert (second.status, second.code) == (400, code)
        assert episode.open.limit is not None
        assert len(episode.record.turns) == 1

    play(scene)


def test_a_turn_without_room_waits_for_the_turns_that_have_a_claim_on_it() -> None:
    async def scene() -> None:
        episode = Episode(counting, limits=EpisodeLimits(max_turns=9, max_tokens=100), max_tokens=100)
        answers = await asyncio.gather(*(chat(app_of(episode), episode, HI, seed=seed) for seed in range(5)))
        assert [answer.status for answer in answers] == [200] * 5
        assert parents(episode) == [FROM_PROMPT] * 5

    play(scene)


@pytest.mark.parametrize(
    ("error", "status", "code", "should_retry"),
    [
        (EngineError("no slot"), 503, "engine_failed", b"true"),
        (EngineError("bad weights", retryable=False), 503, "engine_failed", b"false"),
        (PromptTooLong("too long"), 400, "context_length_exceeded", None),
        (ValueError("a bug of the engine"), 503, "engine_failed", b"false"),
    ],
)
def test_a_fault_of_the_engine_is_told_and_kept(
    error: Exception, status: int, code: str, should_retry: bytes | None
) -> None:
    async def scene() -> None:
        episode = Episode(counting)
        episode.engine.error = error
        answer = await chat(app_of(episode), episode, HI)
        assert (answer.status, answer.code, answer.headers.get(b"x-should-retry")) == (status, code, should_retry)
        assert episode.open.failure is error
        episode.engine.error = None
        assert (await chat(app_of(episode), episode, HI)).status == 200
        assert episode.open.failure is None

    play(scene)


def test_messages_that_the_template_cannot_render_are_refused() -> None:
    async def scene() -> None:
        episode = Episode(counting)
        app = app_of(episode)
        first = await chat(app, episode, HI)
        late_system = [*HI, first.message, {"role": "system", "content": "x"}]
        assert (await chat(app, episode, late_system)).status == 200  # as a root, which this template can render
        assert episode.open.counts["root_template_differs"] == 1

    play(scene)


# ── delivery ────────────────────────────────────────────────────────────────────────────────


async def lost(episode: Episode, messages: list[Any]) -> None:
    """Ask, and go away before the turn is sampled."""
    episode.engine.may_write.clear()
    body = json.dumps({"messages": messages}).encode()
    connection = Connection(app_of(episode), "POST", f"{episode.path}/v1/chat/completions", body)
    running = asyncio.create_task(connection.run())
    while not episode.conversation.running:
        await asyncio.sleep(0)
    connection.go_away()
    assert (await running).status == 0
    episode.engine.may_write.set()
    while episode.conversation.running:
        await asyncio.sleep(0)


def test_a_turn_that_nobody_received_is_not_trained() -> None:
    async def scene() -> None:
        episode = Episode(counting)
        await lost(episode, HI)
        assert (trained(episode), episode.open.counts["undelivered"]) == ([False], 1)

    play(scene)


def test_a_turn_that_is_asked_for_again_is_trained() -> None:
    async def scene() -> None:
        episode = Episode(counting)
        await lost(episode, HI)
        assert (await chat(app_of(episode), episode, HI)).status == 200
        assert (trained(episode), len(episode.engine.requests)) == ([True], 1)

    play(scene)


def test_a_turn_that_a_request_builds_on_is_trained() -> None:
    async def scene() -> None:
        episode = Episode(counting)
        await lost(episode, HI)
        await asyncio.sleep(0)
        await chat(app_of(episode), episode, [*HI, {"role": "assistant", "content": "answer 1"}, user("more")])
        assert (parents(episode), trained(episode)) == ([FROM_PROMPT, 0], [True, True])

    play(scene)


def test_closing_ends_what_is_sampled() -> None:
    async def scene() -> None:
        episode = Episode(counting)
        episode.engine.may_write.clear()
        asking = asyncio.create_task(chat(app_of(episode), episode, HI))
        while not episode.conversation.running:
            await asyncio.sleep(0)
        await episode.open.close()
        await episode.open.close()
        assert ((await asking).status, episode.conversation.running, episode.record.turns) == (404, [], [])
        assert (await chat(app_of(episode), episode, HI)).status == 404

    play(scene)


# ── run again ───────────────────────────────────────────────────────────────────────────────


async def three_turns(episode: Episode, last: str = "c") -> list[Answer]:
    """A program of three turns."""
    messages, answers = list(HI), []
    for content in ("a", "b", last):
        answers.append(await chat(app_of(episode), episode, messages))
        messages += [answers[-1].message, user(content)]
    return answers


def test_a_program_that_runs_again_gets_the_recorded_turns() -> None:
    async def scene() -> None:
        before = Episode(lambda text: f"{len(text)}")
        answers = await three_turns(before)
        again = Episode(lambda _: "something else", earlier=before.record)
        assert [answer.body for answer in await three_turns(again)] == [answer.body for answer in answers]
        assert (again.engine.requests, again.record.turns) == ([], before.record.turns)
        assert again.open.counts["replayed"] == 3

    play(scene)


def test_the_first_turn_that_differs_is_sampled_and_later_ones_leave_the_record() -> None:
    async def scene() -> None:
        before = Episode(lambda text: f"{len(text)}")
        await three_turns(before)
        again = Episode(lambda _: "something else", earlier=before.record)
        first = await chat(app_of(again), again, HI)
        await chat(app_of(again), again, [*HI, first.message, user("another")])
        assert (len(again.engine.requests), again.open.earlier.num_left) == (1, 2)
        assert again.record.turns[0] == before.record.turns[0]
        assert again.record.turns[1].text == "something else"

    play(scene)


def test_a_turn_that_was_begun_is_continued() -> None:
    async def scene() -> None:
        before = Episode(counting)
        begun = structs.replace(completion(sampled("answ", ends=False)), finish_reason="unfinished")
        record = EpisodeRecord(before.record.prompt_ids, [RecordedTurn(FROM_PROMPT, [], begun)])
        again = Episode(counting, earlier=record)
        answer = await chat(app_of(again), again, HI)
        assert answer.message["content"] == "answer 1"
        assert again.engine.requests[0].resume_from == begun
        assert again.record.turns[0].completion.completion_ids == sampled("answer 1")

    play(scene)


def test_seats_that_read_the_same_get_their_own_turns_again() -> None:
    two = EpisodeLimits(max_turns=9, max_tokens=10_000, seats=2)

    async def ask(episode: Episode, *seats: int) -> None:
        for seat in seats:
            path = f"{episode.path}/seats/{seat}/v1/chat/completions"
            await call(app_of(episode), "POST", path, {"messages": [user("Another")]})

    async def scene() -> None:
        texts = iter("ab")
        before = Episode(lambda _: next(texts), limits=two)
        await ask(before, 0, 1)
        again = Episode(lambda _: "x", limits=two, earlier=before.record)
        await ask(again, 1, 0)
        assert [(turn.seat, turn.text) for turn in again.record.turns] == [(1, "b"), (0, "a")]

    play(scene)


def test_choices_are_repeated_in_their_order() -> None:
    async def scene() -> None:
        texts = iter("abcdef")
        before = Episode(lambda _: next(texts))
        first = await chat(app_of(before), before, HI, n=3)
        again = Episode(lambda _: "x", earlier=before.record)
        assert (await chat(app_of(again), again, HI, n=3)).body == first.body

    play(scene)


# ── history = "as_template" ─────────────────────────────────────────────────────────────────


def test_as_template_begins_a_branch_where_the_template_differs() -> None:
    async def scene() -> None:
        gateway = Gateway("http://test", as_template=True)
        episode = Episode(counting, gateway=gateway)
        app = app_of(episode)
        first = await chat(app, episode, HI)
        await chat(app, episode, [*HI, first.message, user("more")])
        # This boundary renders sampled characters with other ids, as a template that drops thoughts would.
        assert (parents(episode), episode.open.counts["root_template_differs"]) == ([FROM_PROMPT, FROM_PROMPT], 1)
        assert episode.engine.requests[1].prompt_ids == episode.boundary.opening([*HI, first.message, user("more")])

    play(scene)


# ── gateway ───────────────────────────────────────────────────────────────────────────────────────


def policy(_: str) -> str:
    return "x"


def test_a_capability_opens_one_episode_until_it_is_closed() -> None:
    gateway = Gateway("http://127.0.0.1:9")
    one, two = Episode(policy, gateway=gateway), Episode(policy, gateway=gateway)
    assert gateway.find(one.open.key) is one.open
    assert gateway.find(two.open.key) is two.open
    assert gateway.find(one.open.key[:-1]) is gateway.find("") is gateway.find("\ud800") is None


def test_addresses_contain_the_capability() -> None:
    episode = Episode(policy, gateway=Gateway("http://127.0.0.1:9")).open
    assert episode.base_url == f"http://127.0.0.1:9/e/{episode.key}/v1"
    assert episode.reward_url == f"http://127.0.0.1:9/e/{episode.key}/reward"


def test_capabilities_have_256_bits() -> None:
    keys = {Episode(policy).open.key for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) == 43 for key in keys)  # base64
