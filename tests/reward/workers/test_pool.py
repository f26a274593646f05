"""Judging in processes that can be killed."""

import asyncio
from pathlib import Path

import pytest

from asyncrl.config.sections.reward import Reward
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.verifier import Verdict, VerifierInput
from asyncrl.reward.workers.pool import RewardSlot, WorkerPool

FUNCTIONS = """
import os, time

def score(sample):
    match sample.completion:
        case "raise":
            raise RuntimeError("no idea")
        case "hang":
            while True:
                time.sleep(1)
        case "nan":
            return float("nan")
        case "none":
            return None
        case "die":
            os._exit(9)
        case "print":
            print("hello")
            return {"score": 1.0, "printed": 1}
    return float(sample.completion)

async def score_async(sample):
    return score(sample)
"""


def judged(
    function: str, *completions: str, workers: int = 1, timeout_s: float = 10.0
) -> list[Verdict | BaseException]:
    """Outcome of each completion; all are judged concurrently."""

    async def judge() -> list[Verdict | BaseException]:
        async with WorkerPool(Reward(function=function, workers=workers, timeout_s=timeout_s)) as pool:
            inputs = [VerifierInput(completion=text, answer="4") for text in completions]
            return await asyncio.gather(*map(pool.judge, inputs), return_exceptions=True)

    return asyncio.run(judge())


@pytest.mark.parametrize("name", ["score", "score_async"])
def test_each_failure_fails_its_own_input(functions: Path, name: str) -> None:
    found = judged(f"{functions}:{name}", "1", "raise", "nan", "hang", "none", "die", "print", "0.5", timeout_s=0.3)

    assert found[0] == Verdict(1.0, {"correct": 1.0})
    assert "raised RuntimeError: no idea" in str(found[1])
    assert "returned nan" in str(found[2])
    assert "hung: no verdict within 0.3 s" in str(found[3])
    assert "returned None" in str(found[4])
    assert "exited with code 9" in str(found[5])
    assert found[6] == Verdict(1.0, {"correct": 1.0, "printed": 1.0})
    assert found[7] == Verdict(0.5, {"correct": 0.0})
    assert [error.retryable for error in found if isinstance(error, VerifierError)] == [True, False, True, False, True]


def test_many_at_once_are_judged_once_each_by_several_workers() -> None:
    completions = [f"#### {n}" for n in range(500)]

    found = judged("gsm8k", *completions, workers=2)

    assert [verdict.reward for verdict in found if isinstance(verdict, Verdict)] == [float(n == 4) for n in range(500)]


def test_a_function_that_cannot_be_loaded_is_a_config_error_at_the_start(functions: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'score'"):
        judged(f"{functions}:scores", "1", workers=2)


def test_closing_fails_pending_and_later_calls(functions: Path) -> None:
    async def close_while_some_wait() -> list[Verdict | BaseException]:
        pool = WorkerPool(Reward(function=f"{functions}:score", timeout_s=3600.0))
        with pytest.raises(VerifierError, match="was not started"):
            await pool.judge(VerifierInput(completion="1"))
        await pool.start()
        being_judged = asyncio.create_task(pool.judge(VerifierInput(completion="hang")))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(pool.judge(VerifierInput(completion="1")))
        await asyncio.sleep(0)
        await pool.aclose()
        await pool.aclose()
        with pytest.raises(VerifierError, match="was closed"):
            await pool.judge(VerifierInput(completion="1"))
        return [*await asyncio.gather(being_judged, waiting, return_exceptions=True)]

    errors = asyncio.run(close_while_some_wait())

    assert ["closed before the verdict" in str(error) for error in errors] == [True, True]


def test_a_cancelled_call_does_not_affect_others(functions: Path) -> None:
    async def cancel_one() -> Verdict:
        async with WorkerPool(Reward(function=f"{functions}:score", timeout_s=5.0)) as pool:
            cancelled = asyncio.create_task(pool.judge(VerifierInput(completion="0")))
            other = asyncio.create_task(pool.judge(VerifierInput(completion="2")))
            await asyncio.sleep(0)
            cancelled.cancel()
            return await other

    assert asyncio.run(cancel_one()).reward == 2.0


def test_when_all_callers_have_gone_as_at_a_restart_of_the_broker_later_ones_are_served(functions: Path) -> None:
    async def cancel_all_and_ask() -> Verdict:
        async with WorkerPool(Reward(function=f"{functions}:score", timeout_s=5.0)) as pool:
            gone = [asyncio.create_task(pool.judge(VerifierInput(completion="0"))) for _ in range(3)]
            await asyncio.sleep(0)
            for task in gone:
                task.cancel()
            return await asyncio.wait_for(pool.judge(VerifierInput(completion="2")), timeout=60)

    assert asyncio.run(cancel_all_and_ask()).reward == 2.0


def test_a_fault_of_the_pool_costs_its_batch_and_no_later_one(functions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail_once() -> list[Verdict | BaseException]:
        async with WorkerPool(Reward(function=f"{functions}:score", timeout_s=5.0)) as pool:
            with monkeypatch.context() as patched:
                patched.setattr(RewardSlot, "judge", lambda slot, batch: [].pop())
                first = await asyncio.gather(pool.judge(VerifierInput(completion="1")), return_exceptions=True)
            return [*first, await asyncio.wait_for(pool.judge(VerifierInput(completion="2")), timeout=60)]

    failed, verdict = asyncio.run(fail_once())
    assert "the reward pool failed: IndexError" in str(failed)
    assert verdict == Verdict(2.0, {"correct": 1.0})


def test_an_input_that_is_no_valid_text_fails_alone() -> None:
    found = judged("gsm8k", "\udcff", "#### 4")

    assert "no valid text" in str(found[0])
    assert found[1] == Verdict(1.0, {"correct": 1.0}, "4")


def test_replaced_workers_are_counted(functions: Path) -> None:
    async def die_twice() -> int:
        async with WorkerPool(Reward(function=f"{functions}:score", timeout_s=5.0)) as pool:
            await asyncio.gather(
                *(pool.judge(VerifierInput(completion="die")) for _ in range(2)), return_exceptions=True
            )
            return pool.replaced

    assert asyncio.run(die_twice()) == 2
