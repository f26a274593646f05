"""
Three hundred hostile completions for every verifier: each is settled within its limit, and none of them is paid.

Those that may be slow are judged as they are in a run, by workers that can be killed; a verdict that is not there is
settled too.
"""

import asyncio
import importlib.util
import shutil

import pytest

from asyncrl.config.sections import Reward, RewardPart
from asyncrl.errors import VerifierError
from asyncrl.reward.blend import verifier_of
from asyncrl.reward.sandbox.sandbox import Sandbox
from asyncrl.reward.verifier import Verdict, VerifierInput, verdict_of
from asyncrl.reward.workers.pool import WorkerPool
from tests.reward.hostile import COUNT, corpus

ANSWER = "18.5"
TESTS = '{"inputs": ["2 3"], "outputs": ["18.5"]}'
NEEDS_SYMPY = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs asyncrl[math]")
NEEDS_WALLS = pytest.mark.skipif(shutil.which("unshare") is None, reason="needs namespaces")
PLAIN = {
    "gsm8k, strict": Reward(function="gsm8k"),
    "gsm8k, flexible": Reward(function="gsm8k", options={"method": "flexible"}),
    "exact": Reward(function="exact", options={"after": "Answer:"}),
    "numeric": Reward(function="numeric"),
    "math_dapo": Reward(function="math_dapo"),
    "math_dapo, boxed": Reward(function="math_dapo", options={"boxed": True}),
    "format": Reward(function="format", options={"template": "<a>...<think>...</think>...\\boxed{...}"}),
    "overlong": Reward(function="overlong", options={"max_tokens": 100, "buffer": 50}),
}


def samples(answer: str = ANSWER, data_source: str = "") -> list[VerifierInput]:
    return [
        VerifierInput(completion=text, answer=answer, data_source=data_source, num_tokens=len(text))
        for text in corpus()
    ]


def settled(reward: Reward, asked: list[VerifierInput]) -> list[Verdict | VerifierError]:
    """What a pool says of each; anything but a verdict or a `VerifierError` is raised."""

    async def judge() -> list[Verdict | VerifierError]:
        async with WorkerPool(reward) as pool:

            async def one(sample: VerifierInput) -> Verdict | VerifierError:
                try:
                    return await pool.judge(sample)
                except VerifierError as error:
                    return error

            return await asyncio.gather(*map(one, asked))

    return asyncio.run(judge())


def test_the_corpus_is_of_three_hundred_and_always_the_same() -> None:
    assert len(set(corpus())) == COUNT
    assert corpus() == corpus()
    assert corpus(1) != corpus()


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.timeout(20)
def test_verifiers_that_cannot_be_slow_pay_nothing(name: str) -> None:
    verifier = verifier_of(PLAIN[name])

    assert all(verdict_of(verifier(sample)).reward <= 0 for sample in samples())


@NEEDS_SYMPY
@pytest.mark.slow
@pytest.mark.parametrize(("function", "most"), [("math", 0.0), ("geo3k", 0.1)])
def test_algebra_is_killed_when_it_takes_too_long_and_pays_nothing(function: str, most: float) -> None:
    found = settled(Reward(function=function, timeout_s=3.0), samples())

    lost = [outcome for outcome in found if isinstance(outcome, VerifierError)]
    assert all(outcome.reward <= most for outcome in found if isinstance(outcome, Verdict))
    assert all("hung" in str(error) for error in lost)
    assert len(lost) < COUNT // 10


@NEEDS_SYMPY
def test_several_rewards_routed_by_data_source_pay_nothing() -> None:
    parts = [
        RewardPart(name="accuracy", function="auto", data_sources=["aime*"]),
        RewardPart(name="length", function="overlong", options={"max_tokens": 100, "buffer": 50}),
    ]

    found = settled(Reward(parts=parts), samples(data_source="aime2024"))

    assert all(isinstance(outcome, Verdict) and outcome.reward <= -1 for outcome in found)


@NEEDS_WALLS
@pytest.mark.slow
def test_programs_are_run_within_walls_and_pay_nothing() -> None:
    if (sandbox := Sandbox.find()) is None or not sandbox.walls:
        pytest.skip("the kernel gives no namespaces here")
    programs = [
        VerifierInput(completion=text if "```python" in text else f"```python\n{text}\n```", answer=TESTS)
        for text in corpus()
    ]

    found = settled(Reward(function="code", options={"cpu_s": 1}), programs)

    assert [outcome for outcome in found if not isinstance(outcome, Verdict)] == []
    assert all(outcome.reward == 0 for outcome in found if isinstance(outcome, Verdict))
