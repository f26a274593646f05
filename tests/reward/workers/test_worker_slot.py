"""Who is to blame when a worker is lost."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from asyncrl.config.sections import Reward
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.verifier import Verdict, VerifierInput
from asyncrl.reward.workers.worker_slot import Case, WorkerSlot

FUNCTIONS = """
import os, time
from pathlib import Path

def decide(sample):
    if sample.completion == "die":
        os._exit(7)
    if sample.completion == "spoil":
        Path(__file__).unlink()
        os._exit(7)
    return float(sample.completion)

async def decide_async(sample):
    return decide(sample)
"""


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    return path


def outcomes(function: str, *completions: str, lose_interest_in: int | None = None) -> tuple[list[object], int]:
    """What each case came to, and how many workers that took beyond the first."""

    async def judge() -> tuple[list[object], int]:
        seat = WorkerSlot(Reward(function=function, timeout_s=5.0))
        future = asyncio.get_running_loop().create_future
        cases = [
            Case(msgspec.Raw(msgspec.msgpack.encode(VerifierInput(completion=text))), future()) for text in completions
        ]
        if lose_interest_in is not None:
            cases[lose_interest_in].verdict.cancel()
        await seat.judge(cases)
        await seat.clear()
        return await asyncio.gather(*(case.verdict for case in cases), return_exceptions=True), seat.replaced

    return asyncio.run(judge())


def test_a_plain_function_is_asked_in_order_so_only_the_sample_in_hand_is_blamed(functions: Path) -> None:
    found, replaced = outcomes(f"{functions}:decide", "1", "die", "3", "die")

    assert [type(outcome) for outcome in found] == [Verdict, VerifierError, Verdict, VerifierError]
    assert replaced == 2


def test_an_async_function_has_all_in_hand_so_each_is_tried_alone(functions: Path) -> None:
    found, replaced = outcomes(f"{functions}:decide_async", "die", "2", "3")

    assert [type(outcome) for outcome in found] == [VerifierError, Verdict, Verdict]
    assert replaced == 2


def test_a_sample_nobody_waits_for_any_more_is_still_the_one_to_blame(functions: Path) -> None:
    found, replaced = outcomes(f"{functions}:decide", "die", "2", lose_interest_in=0)

    assert [type(outcome) for outcome in found] == [asyncio.CancelledError, Verdict]
    assert replaced == 1


def test_a_worker_that_cannot_be_replaced_fails_the_cases_and_says_why(functions: Path) -> None:
    found, _ = outcomes(f"{functions}:decide", "spoil", "2")

    assert "exited with code 7" in str(found[0])
    assert "could not be replaced" in str(found[1])
    assert "there is no file" in str(found[1])


def test_an_idle_worker_that_died_is_replaced_before_anybody_is_blamed(functions: Path) -> None:
    async def judge() -> bool:
        seat = WorkerSlot(Reward(function="gsm8k", timeout_s=5.0))
        first = await seat.fill()
        await first.kill()
        second = await seat.fill()
        await seat.clear()
        return second is first

    assert asyncio.run(judge()) is False


def test_a_bad_function_is_a_config_error() -> None:
    with pytest.raises(ConfigError):
        asyncio.run(WorkerSlot(Reward(function="nope", timeout_s=1.0)).fill())
