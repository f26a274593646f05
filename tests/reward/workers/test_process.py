"""The pool's side of a worker process."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from asyncrl.config.sections.reward import Reward
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.verifier import VerifierInput
from asyncrl.reward.workers.pool import RewardProcess

FUNCTIONS = """
import os, subprocess, time

def decide(sample):
    match sample.completion:
        case "die":
            os.kill(os.getpid(), 9)
        case "leave":
            os._exit(7)
        case "hang":
            time.sleep(3600)
        case "spawn":
            subprocess.Popen(["sleep", "3600"])
    return 1.0

async def block(sample):
    time.sleep(3600)
"""


def raw(completion: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(VerifierInput(completion=completion)))


def lost_over(function: str, *completions: str) -> tuple[list[int], VerifierError]:
    """Judge with a worker that is lost: the inputs that were settled, and the error."""

    async def judge() -> tuple[list[int], VerifierError]:
        settled: list[int] = []
        worker = await RewardProcess.start(Reward(function=function, timeout_s=0.3))
        ones = [1] * len(completions)
        with pytest.raises(VerifierError) as caught:
            await worker.judge([raw(text) for text in completions], ones, lambda place, judged: settled.append(place))
        await worker.kill()
        assert not worker.process.is_alive
        await worker.kill()
        return settled, caught.value

    return asyncio.run(judge())


@pytest.mark.parametrize(
    ("completion", "said"),
    [("hang", "no verdict within 0.3 s"), ("die", "was killed by signal 9"), ("leave", "exited with code 7")],
)
def test_inputs_before_the_loss_are_settled_and_its_cause_is_named(functions: Path, completion: str, said: str) -> None:
    settled, error = lost_over(f"{functions}:decide", "fine", completion, "fine")

    assert settled == [0]
    assert said in str(error)
    assert error.retryable


def test_an_async_function_that_blocks_its_loop_is_killed(functions: Path) -> None:
    settled, error = lost_over(f"{functions}:block", "a", "b")

    assert settled == []
    assert "its worker was killed" in str(error)


@pytest.mark.timeout(20)
def test_killing_a_worker_ends_what_its_function_has_started(functions: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    script = functions.read_text().replace('["sleep", "3600"]', f'"exec sleep 3600 > {fifo}", shell=True')
    functions.write_text(script)

    os.mkfifo(fifo)

    async def spawn_and_kill() -> bytes:
        worker = await RewardProcess.start(Reward(function=f"{functions}:decide", timeout_s=10.0))
        await worker.judge([raw("spawn")], [1], lambda place, judged: None)
        reader = os.open(fifo, os.O_RDONLY)  # returns once the other end is open
        await worker.kill()
        with os.fdopen(reader, "rb") as still_open:
            return still_open.read()  # ends when no process has it open any more

    assert asyncio.run(spawn_and_kill()) == b""


def test_a_worker_that_cannot_load_its_function_says_why(tmp_path: Path) -> None:
    (tmp_path / "abort.py").write_text("import os\nos._exit(5)\n")

    with pytest.raises(ConfigError, match="did you mean 'exact'"):
        asyncio.run(RewardProcess.start(Reward(function="exat", timeout_s=1.0)))
    with pytest.raises(ConfigError, match=r"ended its process when it was imported: .* exited with code 5"):
        asyncio.run(RewardProcess.start(Reward(function=f"{tmp_path}/abort.py:score", timeout_s=1.0)))
