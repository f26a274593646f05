"""
Three hundred hostile completions for every verifier: each is settled within its limit, and none is rewarded.

Slow verifiers run as in a run, in workers that can be killed; a failure without a verdict counts as settled.
"""

import asyncio
import shutil

import pytest

from asyncrl.config.sections.reward import Reward, RewardPart
from asyncrl.errors import VerifierError
from asyncrl.reward.routing import make_verifier
from asyncrl.reward.verifier import Verdict, VerifierInput, verdict_of
from asyncrl.reward.workers.pool import WorkerPool
from asyncrl.workers.sandbox import Sandbox
from tests.reward.hostile import COUNT, corpus

ANSWER = "18.5"
TESTS = '{"inputs": ["2 3"], "outputs": ["18.5"]}'
NEEDS_NAMESPACES = pytest.mark.skipif(shutil.which("unshare") is None, reason="needs namespaces")
PLAIN = {
    "gsm8k, strict": Reward(function="gsm8k"),
    "gsm8k, flexible": Reward(function="gsm8k", options={"method": "flexible"}),
    "exact": Reward(function="exact", options={"after": "Answer:"}),
    "numeric": Reward(function="numeric"),
    "math": Reward(function="math"),
    "math_dapo": Reward(function="math_dapo"),
    "math_dapo, boxed": Reward(function="math_dapo", options={"boxed": True}),
    "geo3k": Reward(function="geo3k", options={"format_weight": 0.0}),
    "format": Reward(function="format", options={"template": "<a>...<think>...</think>...\\boxed{...}"}),
    "length": Reward(function="length", options={"max_tokens": 100}),
    "overlong": Reward(function="overlong", options={"max_tokens": 100, "buffer": 50}),
}


def hostile_inputs(answer: str = ANSWER, data_source: str = "") -> list[VerifierInput]:
    return [
        VerifierInput(completion=text, answer=answer, data_source=data_source, num_tokens=len(text))
        for text in corpus()
    ]


def settled(reward: Reward, asked: list[VerifierInput]) -> list[Verdict | VerifierError]:
    """Verdict or `VerifierError` of each input; any other exception is raised."""

    async def judge() -> list[Verdict | VerifierError]:
        async with WorkerPool(reward) as pool:

            async def one(inputs: VerifierInput) -> Verdict | VerifierError:
                try:
                    return await pool.judge(inputs)
                except VerifierError as error:
                    return error

            return await asyncio.gather(*map(one, asked))

    return asyncio.run(judge())


def test_the_corpus_has_three_hundred_strings_and_is_deterministic() -> None:
    assert len(set(corpus())) == COUNT
    assert corpus() == corpus()
    assert corpus(1) != corpus()


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.timeout(20)
def test_fast_verifiers_reward_nothing(name: str) -> None:
    verifier = make_verifier(PLAIN[name])

    assert all(verdict_of(verifier(inputs)).reward <= 0 for inputs in hostile_inputs())


def test_several_rewards_routed_by_data_source_reward_nothing() -> None:
    parts = [
        RewardPart(name="accuracy", function="auto", data_sources=["aime*"]),
        RewardPart(name="length", function="overlong", options={"max_tokens": 100, "buffer": 50}),
    ]

    found = settled(Reward(parts=parts), hostile_inputs(data_source="aime2024"))

    assert all(isinstance(outcome, Verdict) and outcome.reward <= -1 for outcome in found)


@pytest.mark.long("three hundred programs")
@NEEDS_NAMESPACES
def test_programs_run_in_namespaces_get_no_reward() -> None:
    if (sandbox := Sandbox.find()) is None or not sandbox.has_namespaces:
        pytest.skip("the kernel gives no namespaces here")
    programs = [
        VerifierInput(completion=text if "```python" in text else f"```python\n{text}\n```", answer=TESTS)
        for text in corpus()
    ]

    found = settled(Reward(function="code", options={"cpu_s": 1}), programs)

    assert [outcome for outcome in found if not isinstance(outcome, Verdict)] == []
    assert all(outcome.reward == 0 for outcome in found if isinstance(outcome, Verdict))
