"""A verifier behind HTTP."""

import asyncio

import pytest

pytest.importorskip("httpx")

from asyncrl.config.sections.reward import Reward
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.verifier import Verdict, VerifierInput
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
