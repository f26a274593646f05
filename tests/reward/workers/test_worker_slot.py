"""Lost workers: which input fails, and which are judged again."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from asyncrl.config.sections.reward import Reward
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.verifier import Verdict, VerifierInput
from asyncrl.reward.workers.messages import Judged
from asyncrl.reward.workers.pool import PendingVerdict, RewardSlot, WorkerRecord

FUNCTIONS = """
import os, time
from pathlib import Path

def decide(sample):
    if sample.completion == "die":
        os._exit(7)
    if sample.completion == "spoil":
        Path(__file__).unlink()
        os._exit(7)
    if sample.completion == "damage":
        damaged.append(1)
    if damaged:
        raise RuntimeError("damaged")
    return float(sample.completion)

damaged = []

async def decide_async(sample):
    return decide(sample)
"""


async def outcome(pending: PendingVerdict) -> object:
    """The verdict, or why there is none."""
    (found,) = await asyncio.gather(pending.verdicts, return_exceptions=True)
    return found if isinstance(found, BaseException) else found[0]


def outcomes(function: str, *completions: str, cancelled: int | None = None) -> tuple[list[object], int]:
    """Outcome of each completion, and the number of workers replaced."""

    async def judge() -> tuple[list[object], int]:
        slot = RewardSlot(Reward(function=function, timeout_s=5.0))
        future = asyncio.get_running_loop().create_future
        encoded = [msgspec.Raw(msgspec.msgpack.encode(VerifierInput(completion=text))) for text in completions]
        batch = [PendingVerdict(inputs, 1, future()) for inputs in encoded]
        if cancelled is not None:
            batch[cancelled].verdicts.cancel()
        await slot.judge(batch)
        await slot.clear()
        return [await outcome(pending) for pending in batch], slot.replaced

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
        slot = RewardSlot(Reward(function="gsm8k", timeout_s=5.0))
        first = await slot.fill()
        await first.kill()
        second = await slot.fill()
        await slot.clear()
        return second is first

    assert asyncio.run(judge()) is False


def test_each_lost_worker_is_logged_with_its_cause(functions: Path) -> None:
    async def lose_an_idle_one() -> None:
        slot = RewardSlot(Reward(function="gsm8k", timeout_s=5.0))
        await (await slot.fill()).kill()
        await slot.fill()
        await slot.clear()

    with capture_logs() as logs:
        outcomes(f"{functions}:decide", "die")
        asyncio.run(lose_an_idle_one())
    assert [(line["event"], line["log_level"]) for line in logs] == [("worker.lost", "warning")] * 2
    assert "exited with code 7" in logs[0]["cause"]
    assert "was lost with its parent" in logs[1]["cause"]


def test_a_bad_function_is_a_config_error() -> None:
    with pytest.raises(ConfigError):
        asyncio.run(RewardSlot(Reward(function="nope", timeout_s=1.0)).fill())


def test_the_third_worker_lost_in_a_row_is_the_functions_fault_and_not_tried_again(functions: Path) -> None:
    found, replaced = outcomes(f"{functions}:decide", "die", "1", "die", "die", "die", "1", "die")

    retryable = [outcome.retryable for outcome in found if isinstance(outcome, VerifierError)]
    assert retryable == [True, True, True, False, True, True]
    assert replaced == 4
    assert "not judged after 3 lost workers in a row: the reward worker died" in str(found[-1])


@pytest.mark.timeout(60)
def test_a_function_that_damages_its_process_is_given_a_new_one(functions: Path) -> None:
    async def judge() -> list[object]:
        slot = RewardSlot(Reward(function=f"{functions}:decide", timeout_s=20.0), clock=lambda: 0.0)
        found: list[object] = []
        for text in ("1", "damage", "2", "3", "4"):
            encoded = msgspec.Raw(msgspec.msgpack.encode(VerifierInput(completion=text)))
            pending = PendingVerdict(encoded, 1, asyncio.get_running_loop().create_future())
            await slot.judge([pending])
            found.append(await outcome(pending))
        await slot.clear()
        return found

    found = asyncio.run(judge())

    assert [type(outcome) for outcome in found] == [Verdict, VerifierError, VerifierError, VerifierError, Verdict]


def record_of(*judged: Judged) -> WorkerRecord:
    record = WorkerRecord(started_at=100.0, start_s=2.0)
    for one in judged:
        record.settled(one)
    return record


GOOD, BAD, WRONG = Judged(0, [Verdict(1.0)]), Judged(0, [], "raised", retryable=True), Judged(0, [], "no tests")


def test_a_worker_is_suspect_after_three_failures_that_may_come_back_if_it_has_judged_before() -> None:
    assert record_of(GOOD, BAD, BAD, BAD).is_suspect(160.0)
    assert not record_of(GOOD, BAD, BAD).is_suspect(160.0)
    assert not record_of(GOOD, BAD, BAD, GOOD, BAD).is_suspect(160.0)
    assert not record_of(GOOD, WRONG, WRONG, WRONG).is_suspect(160.0)
    assert not record_of(BAD, BAD, BAD, BAD).is_suspect(160.0)  # its service may be away


def test_a_worker_is_not_replaced_for_failures_soon_after_a_slow_start() -> None:
    assert not record_of(GOOD, BAD, BAD, BAD).is_suspect(159.0)


def test_numbers_from_a_worker_are_checked_again() -> None:
    async def settled(verdict: Verdict) -> object:
        pending = PendingVerdict(msgspec.Raw(b""), 1, asyncio.get_running_loop().create_future())
        pending.settle(Judged(0, [verdict]))
        return await outcome(pending)

    assert asyncio.run(settled(Verdict(1.0, {"correct": 1.0}))) == Verdict(1.0, {"correct": 1.0})
    for forged in (Verdict(float("nan")), Verdict(0.0, {"m": 1e13}), Verdict(0.0, {}, "x" * 201)):
        assert "the reward worker sent no verdict" in str(asyncio.run(settled(forged)))
