"""Reward model served by an engine."""

import asyncio

import pytest

from asyncrl.errors import VerifierError
from asyncrl.reward.verifier import Verdict, VerifierInput, verdict_of
from tests.reward.service import Service

RewardModel = pytest.importorskip("asyncrl.reward.verifiers.remote", exc_type=ImportError).RewardModel


def judged(body: str, prompt: str | list[dict[str, str]] = "2 + 2?") -> tuple[Verdict, Service]:
    async def judge() -> tuple[Verdict, Service]:
        async with Service((200, body)).running() as service:
            verifier = RewardModel(url=service.url, model="judge", activation=False)
            try:
                return verdict_of(await verifier(VerifierInput(prompt=prompt, completion="4"))), service
            finally:
                await verifier.endpoint.aclose()

    return asyncio.run(judge())


def test_the_model_is_shown_the_chat_and_its_output_is_the_score() -> None:
    verdict, service = judged('{"data": [{"index": 0, "label": "L", "probs": [2.5], "num_classes": 1}]}')

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

    verdict, service = judged('{"data": [{"probs": [0.25]}]}', chat)

    assert verdict == Verdict(0.25, {"correct": 0.0})
    assert service.requests[0]["messages"] == [*chat, {"role": "assistant", "content": "4"}]


@pytest.mark.parametrize("body", ["{}", '{"data": []}', '{"data": [{"probs": []}]}', "3"])
def test_an_answer_of_another_form_is_no_verdict(body: str) -> None:
    with pytest.raises(VerifierError, match=r"expected data\[0\].probs\[0\]"):
        judged(body)
