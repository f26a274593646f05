"""Lost workers: which input fails, and which are judged again."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from asyncrl.config.sections import Reward
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.verifier import Verdict, VerifierInput
from asyncrl.reward.workers.worker_slot import PendingVerdict, WorkerSlot

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


def outcomes(function: str, *completions: str, cancelled: int | None = None) -> tuple[list[object], int]:
    """Outcome of each completion, and the number of workers replaced."""

    async def judge() -> tuple[list[object], int]:
        slot = WorkerSlot(Reward(function=function, timeout_s=5.0))
        future = asyncio.get_running_loop().create_future
        encoded = [msgspec.Raw(msgspec.msgpack.encode(VerifierInput(completion=text))) for text in completions]
        batch = [PendingVerdict(inputs, future()) for inputs in encoded]
        if cancelled is not None:
            batch[cancelled].verdict.cancel()
        await slot.judge(batch)
        await slot.clear()
        return await asyncio.gather(*(pending.verdict for pending in batch), return_exceptions=True), slot.replaced

    return asyncio.run(judge())


def test_a_sync_function_judges_in_order_so_only_the_current_input_fails(functions: Path) -> None:
    found, replaced = outcomes(f"{functions}:decide", "1", "die", "3", "die")

    assert [type(outcome) for outcome in found] == [Verdict, VerifierError, Verdict, VerifierError]
    assert replaced == 2


def test_an_async_function_judges_all_at_once_so_each_is_repeated_alone(functions: Path) -> None:
    found, replaced = outcomes(f"{functions}:decide_async", "die", "2", "3")

    assert [type(outcome) for outcome in found] == [VerifierError, Verdict, Verdict]
    assert replaced == 2


def test_a_cancelled_input_can_still_be_the_one_that_loses_the_worker(functions: Path) -> None:
    found, replaced = outcomes(f"{functions}:decide", "die", "2", cancelled=0)

    assert [type(outcome) for outcome in found] == [asyncio.CancelledError, Verdict]
    assert replaced == 1


def test_a_worker_that_cannot_be_replaced_fails_the_rest(functions: Path) -> None:
    found, _ = outcomes(f"{functions}:decide", "spoil", "2")

    assert "exited with code 7" in str(found[0])
    assert "could not be replaced" in str(found[1])
    assert "there is no file" in str(found[1])


def test_an_idle_worker_that_died_is_replaced_before_the_next_batch(functions: Path) -> None:
    async def judge() -> bool:
        slot = WorkerSlot(Reward(function="gsm8k", timeout_s=5.0))
        first = await slot.fill()
        await first.kill()
        second = await slot.fill()
        await slot.clear()
        return second is first

    assert asyncio.run(judge()) is False


def test_a_bad_function_is_a_config_error() -> None:
    with pytest.raises(ConfigError):
        asyncio.run(WorkerSlot(Reward(function="nope", timeout_s=1.0)).fill())
