"""A verifier behind HTTP."""

import asyncio

import pytest

pytest.importorskip("httpx")

from pathlib import Path
from typing import Any

from asyncrl.config.sections.reward import Reward
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.verifier import Verdict, VerifierInput, verdict_of
from asyncrl.reward.verifiers.remote import JsonService, RewardModel
from asyncrl.reward.workers.pool import WorkerPool
from tests.reward.service import Service

INPUTS = VerifierInput(completion="4", answer="5", data_source="sums", extra={"index": 7}, num_tokens=1)


def judged(*answers: tuple[int, str], timeout_s: float = 10.0) -> tuple[Verdict | VerifierError, Service]:
    async def judge() -> tuple[Verdict | VerifierError, Service]:
        async with Service(*answers).running() as service:
            options: dict[str, str | int | float | bool] = {
                "url": service.url,
                "wait_s": 0.001,
                "deadline_s": timeout_s / 2,
            }
            async with WorkerPool(Reward(function="remote", options=options, timeout_s=timeout_s)) as pool:
                try:
                    return await pool.judge(INPUTS), service
                except VerifierError as error:
                    return error, service

    return asyncio.run(judge())


def test_the_service_is_sent_the_input_and_its_answer_is_the_verdict() -> None:
    verdict, service = judged((503, ""), (200, '{"score": 1, "kind": 0.5}'))

    assert verdict == Verdict(1.0, {"correct": 1.0, "kind": 0.5})
    assert service.requests[-1] == {
        "prompt": "",
        "completion": "4",
        "opened": "",
        "answer": "5",
        "data_source": "sums",
        "extra": {"index": 7},
        "tools": "",
        "finish_reason": "stop",
        "num_tokens": 1,
        "turns": [],
        "episode_reward": None,
        "scores": {},
    }


def test_a_service_that_fails_is_no_verdict() -> None:
    error, _ = judged((500, "broken"), timeout_s=1.0)

    assert isinstance(error, VerifierError)
    assert error.retryable
    assert "status 500: 'broken'" in str(error)


def test_a_url_must_be_given_and_be_one() -> None:
    with pytest.raises(ConfigError, match="missing required field `url`"):
        resolve("remote")
    with pytest.raises(ConfigError, match="expected http://"):
        resolve("remote", {"url": "localhost"})


# ── service ───────────────────────────────────────────────────────────────────────────────────────
# Requests to a JSON service, repeated until it answers.


def posted(*answers: tuple[int, str], deadline_s: float = 20.0, token_file: str = "") -> tuple[Any, Service]:
    """Answer or error of one request, and the service it was sent to."""

    async def post() -> tuple[Any, Service]:
        async with Service(*answers).running() as service:
            client = JsonService(service.url, token_file=token_file, deadline_s=deadline_s, wait_s=0.001)
            try:
                return await client.post({"completion": "é\x00"}), service
            except VerifierError as error:
                return error, service
            finally:
                await client.aclose()

    return asyncio.run(post())


def test_the_answer_is_read_as_json() -> None:
    answer, service = posted((200, '{"score": 0.5}'))

    assert answer == {"score": 0.5}
    assert service.requests == [{"completion": "é\x00"}]
    assert "content-type: application/json" in service.headers[0].lower()


def test_a_busy_service_gets_the_request_again() -> None:
    answer, service = posted((503, "later"), (429, ""), (0, ""), (200, "1"))

    assert answer == 1
    assert len(service.requests) == 4


def test_a_service_that_stays_busy_is_a_retryable_failure() -> None:
    error, _ = posted((503, "out of memory"), deadline_s=0.2)

    assert isinstance(error, VerifierError)
    assert error.retryable
    assert "within 0.2 s: status 503: 'out of memory'" in str(error)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, "no such page"), "status 404: 'no such page'"),
        ((200, "<html>"), "something else than JSON: '<html>'"),
        ((200, "[" * 100_000), "something else than JSON"),
        ((200, " " * 2_000_000), "more than 1048576 bytes"),
    ],
)
def test_an_answer_that_will_not_change_is_a_failure_at_once(answer: tuple[int, str], said: str) -> None:
    error, service = posted(answer)

    assert isinstance(error, VerifierError)
    assert not error.retryable
    assert said in str(error)
    assert len(service.requests) == 1


def test_a_service_that_is_not_running_is_waited_for() -> None:
    async def post() -> None:
        client = JsonService("http://127.0.0.1:9/", deadline_s=0.1, wait_s=0.001)
        try:
            await client.post({})
        finally:
            await client.aclose()

    with pytest.raises(VerifierError, match="ConnectError"):
        asyncio.run(post())


def test_the_token_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")

    _, service = posted((200, "1"), token_file=str(tmp_path / "token"))

    assert "authorization: bearer s3cret" in service.headers[0].lower()
    with pytest.raises(ConfigError, match="cannot be read"):
        posted((200, "1"), token_file=str(tmp_path / "none"))


def test_an_invalid_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected http://"):
        JsonService("localhost:8000", deadline_s=1.0, wait_s=0.1)


# ── reward model ──────────────────────────────────────────────────────────────────────────────────
# Reward model served by an engine.


def classified(body: str, prompt: str | list[dict[str, str]] = "2 + 2?") -> tuple[Verdict, Service]:
    async def judge() -> tuple[Verdict, Service]:
        async with Service((200, body)).running() as service:
            verifier = RewardModel(url=service.url, model="judge", activation=False)
            try:
                return verdict_of(await verifier(VerifierInput(prompt=prompt, completion="4"))), service
            finally:
                await verifier.service.aclose()

    return asyncio.run(judge())


def test_the_model_is_shown_the_chat_and_its_output_is_the_score() -> None:
    verdict, service = classified('{"data": [{"index": 0, "label": "L", "probs": [2.5], "num_classes": 1}]}')

    assert verdict == Verdict(2.5, {"correct": 1.0})
    assert service.requests == [
        {
            "model": "judge",
            "messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}],
            "use_activation": False,
        }
    ]


def test_a_chat_is_continued() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]

    verdict, service = classified('{"data": [{"probs": [0.25]}]}', chat)

    assert verdict == Verdict(0.25, {"correct": 0.0})
    assert service.requests[0]["messages"] == [*chat, {"role": "assistant", "content": "4"}]


@pytest.mark.parametrize("body", ["{}", '{"data": []}', '{"data": [{"probs": []}]}', "3"])
def test_an_answer_of_another_form_is_no_verdict(body: str) -> None:
    with pytest.raises(VerifierError, match=r"expected data\[0\].probs\[0\]"):
        classified(body)
