"""A model that others serve is asked once for what it has answered, within limits, and until a deadline."""

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")

from asyncrl.config.sections.models import ServedModel
from asyncrl.errors import ServiceFailed
from asyncrl.served.model import AskedModel, KeptAnswers, TokenBucket
from asyncrl.wire.endpoint import HttpAnswer, seconds_of
from tests.reward.service import Service
from tests.served.judge import KEY, MODEL, Judge

API = "chat/completions"


def asked(text: str = "a b c", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)


def play(
    scene: Callable[[AskedModel, Judge, Clock], Awaitable[None]],
    judge: Judge | None = None,
    *,
    key: str = KEY,
    **settings: Any,
) -> None:
    async def main() -> None:
        clock = Clock()
        async with (judge or Judge()).running() as service:
            served = ServedModel(url=service.url, model=MODEL, **settings)
            model = AskedModel("judge", served, key=key, clock=clock, sleep=clock.sleep)
            try:
                await scene(model, service, clock)
            finally:
                await model.aclose()

    asyncio.run(asyncio.wait_for(main(), 60))


def text_of(answer: HttpAnswer) -> str:
    assert answer.status == 200, answer
    said: str = json.loads(answer.body)["choices"][0]["message"]["content"]
    return said


# ── kept answers ──────────────────────────────────────────────────────────────────────────────


def test_a_greedy_answer_is_asked_for_once_and_a_sampled_one_each_time() -> None:
    async def scene(model: AskedModel, judge: Judge, clock: Clock) -> None:
        for _ in range(3):
            assert text_of(await model.ask(API, asked())) == "3"
        assert len(judge.requests) == 1
        for _ in range(3):
            await model.ask(API, asked(temperature=1))
        assert len(judge.requests) == 4
        use = model.use
        assert (use.requests, use.cached, use.failed, use.repeated, use.tokens) == (6, 2, 0, 0, 4 * 7)

    play(scene)


def test_equal_is_equal_in_whatever_order_the_fields_stand() -> None:
    async def scene(model: AskedModel, judge: Judge, clock: Clock) -> None:
        one = {"temperature": 0, "messages": [{"role": "user", "content": "a"}]}
        other = {"messages": [{"content": "a", "role": "user"}], "temperature": 0, "model": "by any name"}
        await model.ask(API, one)
        await model.ask(API, other)
        await model.ask(API, {**one, "max_tokens": 3})
        assert [request["model"] for request in judge.requests] == [MODEL, MODEL]

    play(scene)


@pytest.mark.parametrize(("cache", "num_requests"), [("all", 1), ("greedy", 2), ("none", 2)])
def test_the_settings_say_what_is_kept(cache: str, num_requests: int) -> None:
    async def scene(model: AskedModel, judge: Judge, clock: Clock) -> None:
        await model.ask(API, asked(temperature=1))
        await model.ask(API, asked(temperature=1))
        assert len(judge.requests) == num_requests

    play(scene, cache=cache)


def test_equal_requests_at_one_time_are_one_request() -> None:
    async def scene(model: AskedModel, judge: Judge, clock: Clock) -> None:
        judge.may_answer.clear()
        asking = [asyncio.ensure_future(model.ask(API, asked())) for _ in range(5)]
        while not judge.most_at_once:
            await asyncio.sleep(0)
        asking[0].cancel()  # the others still wait for it
        judge.may_answer.set()
        answers = await asyncio.gather(*asking[1:])
        assert {text_of(answer) for answer in answers} == {"3"}
        assert len(judge.requests) == 1

    play(scene)


def test_answers_outlive_the_node(tmp_path: Path) -> None:
    path = tmp_path / "models" / "judge.sqlite"

    async def main() -> None:
        judge = Judge()
        async with judge.running() as service:
            for _ in range(2):
                model = AskedModel("judge", ServedModel(url=service.url, model=MODEL), key=KEY, path=path)
                await model.ask(API, asked())
                await model.aclose()
            other = AskedModel("judge", ServedModel(url=f"{service.url}/", model=MODEL), key=KEY, path=path)
            await other.ask(API, asked())
            await other.aclose()
        assert len(judge.requests) == 2, "another address may have another model"

    asyncio.run(main())


def test_what_is_no_answer_is_not_kept() -> None:
    async def scene(model: AskedModel, judge: Judge, clock: Clock) -> None:
        assert (await model.ask(API, {"temperature": 0})).status == 400
        assert (await model.ask(API, {"temperature": 0})).status == 400
        assert len(judge.requests) == 2
        assert model.use.failed == 2

    play(scene)


def test_the_oldest_answers_go_first(tmp_path: Path) -> None:
    answers = KeptAnswers(tmp_path / "kept.sqlite", 100)
    for number in range(5):
        answers.put(b"%d" % number, b"x" * 30)
    answers.put(b"huge", b"x" * 101)
    answers.put(b"4", b"another")
    answers.close()

    again = KeptAnswers(tmp_path / "kept.sqlite", 100)
    assert [bool(again.get(b"%d" % number)) for number in range(5)] == [False, False, True, True, True]
    assert again.get(b"huge") is None
    assert again.get(b"4") == b"x" * 30
    again.put(b"5", b"x" * 30)
    assert again.get(b"2") is None
    again.close()


def test_a_damaged_file_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "kept.sqlite"
    path.write_bytes(b"no database" * 1000)
    answers = KeptAnswers(path, 100)
    answers.put(b"a", b"1")
    answers.close()
    assert sqlite3.connect(path).execute("SELECT answer FROM answers").fetchall() == [(b"1",)]


def test_without_a_place_for_a_file_answers_are_kept_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answers = KeptAnswers(tmp_path / "file" / "kept.sqlite", 100)
    answers.put(b"a", b"1")
    assert answers.get(b"a") == b"1"
    answers.close()


# ── limits ────────────────────────────────────────────────────────────────────────────────────


def test_a_bucket_lets_a_seconds_worth_through_at_once_and_then_its_rate() -> None:
    bucket = TokenBucket(4.0)
    assert [bucket.take(10.0) for _ in range(6)] == [0.0, 0.0, 0.0, 0.0, 0.25, 0.5]
    assert bucket.take(100.0) == 0.0


def test_a_slow_bucket_lets_one_through_at_a_time() -> None:
    bucket = TokenBucket(0.5)
    assert [bucket.take(0.0) for _ in range(3)] == [0.0, 2.0, 4.0]
    assert bucket.take(3.0) == 3.0


def test_requests_wait_for_their_turn() -> None:
    async def scene(model: AskedModel, judge: Judge, clock: Clock) -> None:
        for number in range(5):
            await model.ask(API, asked(f"{number}"))
        assert clock.now_s == 8.0
        assert model.use.seconds == 8.0

    play(scene, requests_per_s=0.5)


def test_no_more_are_sent_at_once_than_may_be() -> None:
    async def scene(model: AskedModel, judge: Judge, clock: Clock) -> None:
        await asyncio.gather(*(model.ask(API, asked(f"{number}")) for number in range(12)))
        assert judge.most_at_once <= 3
        assert len(judge.requests) == 12

    play(scene, at_once=3)


# ── failures ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [408, 429, 500, 503, 0], ids=str)
def test_a_busy_server_is_asked_again(status: int) -> None:
    async def scene(model: AskedModel, judge: Judge, clock: Clock) -> None:
        assert text_of(await model.ask(API, asked())) == "3"
        assert (model.use.requests, model.use.repeated, model.use.failed) == (1, 2, 0)

    play(scene, Judge(trouble=[(status, {}), (status, {})]))


def test_it_waits_as_long_as_the_server_asks_for() -> None:
    async def scene(model: AskedModel, judge: Judge, clock: Clock) -> None:
        await model.ask(API, asked())
        assert clock.slept == [17.0]

    play(scene, Judge(trouble=[(429, {"retry-after": "17"})]))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("17", 17.0), ("-3", 0.0), ("nan", 0.0), ("inf", 86_400.0), ("soon", 0.0), ("", 0.0)],
)
def test_a_wait_is_a_number_of_seconds(text: str, seconds: float) -> None:
    assert seconds_of(text, 0.0) == seconds


def test_or_a_date() -> None:
    assert seconds_of("Thu, 01 Jan 1970 00:01:00 GMT", 18.0) == 42.0


def test_a_server_that_stays_busy_is_named_with_the_cause_after_the_deadline() -> None:
    async def scene(model: AskedModel, judge: Judge, clock: Clock) -> None:
        with pytest.raises(ServiceFailed) as failed:
            await model.ask(API, asked())
        assert failed.value.retryable
        assert str(failed.value).startswith(f"model 'judge': {judge.url} gave no answer within 50 s: status 429: ")
        assert clock.now_s == pytest.approx(50.0)
        assert model.use.failed == 1

    play(scene, Judge(trouble=[(429, {})] * 1000))


def test_a_wait_beyond_the_deadline_ends_with_it() -> None:
    """Who failed at once would only ask again as early."""

    async def scene(model: AskedModel, judge: Judge, clock: Clock) -> None:
        with pytest.raises(ServiceFailed, match="status 429"):
            await model.ask(API, asked())
        assert clock.now_s == 50.0

    play(scene, Judge(trouble=[(429, {"retry-after": "3600"})]))


def test_no_server_is_waited_for() -> None:
    async def main() -> None:
        clock = Clock()
        model = AskedModel("judge", ServedModel(url="http://127.0.0.1:9/v1"), clock=clock, sleep=clock.sleep)
        with pytest.raises(ServiceFailed, match="within 50 s: ConnectError"):
            await model.ask(API, asked())
        await model.aclose()

    asyncio.run(main())


def test_a_refusal_is_passed_on_without_the_key() -> None:
    async def scene(model: AskedModel, judge: Judge, clock: Clock) -> None:
        status, body = await model.ask(API, asked())
        assert status == 401
        assert b"Incorrect API key provided: Bearer [key]" in body
        assert len(clock.slept) == 0

    play(scene, key="sk-of-somebody-else")


def test_an_answer_that_is_no_json_fails() -> None:
    async def main() -> None:
        async with Service((200, "<html>")).running() as service:
            model = AskedModel("judge", ServedModel(url=service.url))
            with pytest.raises(ServiceFailed, match="no JSON object: '<html>'") as failed:
                await model.ask(API, asked())
            assert not failed.value.retryable
            assert model.use.failed == 1
            await model.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    "usage", ['{"prompt_tokens": -1}', '{"prompt_tokens": 1e99}', "3", "null", '{"input_tokens": 4}']
)
def test_tokens_are_counted_as_far_as_they_can_be_believed(usage: str) -> None:
    async def main() -> None:
        async with Service((200, f'{{"usage": {usage}}}')).running() as service:
            model = AskedModel("judge", ServedModel(url=service.url))
            await model.ask(API, asked())
            assert model.use.tokens == (4 if "input" in usage else 0)
            assert model.use.out_of_bounds() == ""
            await model.aclose()

    asyncio.run(main())
