"""A worker process without a pool."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from asyncrl.config.sections.reward import Reward
from asyncrl.reward.verifier import Verdict, VerifierInput
from asyncrl.reward.workers.messages import (
    FromWorker,
    Judge,
    Judged,
    Loaded,
    PipeMessage,
    UnusableVerifier,
    WorkerLoad,
    decode,
    encode,
)
from asyncrl.workers.frames import read_frame

FUNCTIONS = """
import os, subprocess, sys
print("imported")

def talkative(sample):
    print("judging", sample.completion)
    sys.stdout.write("x" * 100_000)
    subprocess.run(["echo", "from a child"])
    os.write(1, b"straight to the descriptor")
    return float(len(sys.stdin.read()) + 1)

def explode(sample):
    return int(sample.completion)

def look_up(sample):
    return sample.extra["kind"]

def look_up_elsewhere(sample):
    return {"known": 1.0}[sample.extra["a"]]

def compute_score(solution_str, ground_truth, extra_info):
    return extra_info["kind"]

def leave(sample):
    sys.exit(sample.completion)

def dictionary(sample):
    return {"score": 0.5, "terse": 1}

async def waits(sample):
    import asyncio
    await asyncio.sleep(3600 if sample.completion == "hang" else 0)
    return float(sample.completion)

def awaitable(sample):
    return waits(sample)
"""


class Child:
    """A worker process and its pipes."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def say(self, message: PipeMessage) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(encode(message))
        self._process.stdin.flush()

    def hear(self) -> FromWorker:
        assert self._process.stdout is not None
        message = read_frame(self._process.stdout)
        assert message is not None
        return decode(message)

    def judge(self, *completions: str) -> list[Judged]:
        self.say(
            Judge(0, [msgspec.Raw(msgspec.msgpack.encode(VerifierInput(completion=text))) for text in completions])
        )
        answers = [self.hear() for _ in completions]
        return [answer for answer in answers if isinstance(answer, Judged)]


@pytest.fixture
def process() -> "Iterator[subprocess.Popen[bytes]]":
    command = [sys.executable, "-m", "asyncrl.reward.workers.worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        yield process
        process.kill()


@pytest.fixture
def child(process: "subprocess.Popen[bytes]") -> Child:
    return Child(process)


def test_prints_of_the_function_and_its_children_do_not_reach_the_pipe(child: Child, functions: Path) -> None:
    child.say(WorkerLoad(Reward(function=f"{functions}:talkative", timeout_s=1.0)))

    assert child.hear() == Loaded(concurrent=False)
    assert child.judge("a", "b") == [Judged(index, [Verdict(1.0, {"correct": 1.0})]) for index in (0, 1)]


def test_an_exception_is_reported_with_file_and_line_and_the_worker_goes_on(child: Child, functions: Path) -> None:
    child.say(WorkerLoad(Reward(function=f"{functions}:explode", timeout_s=1.0)))
    child.hear()
    line = FUNCTIONS.splitlines().index("    return int(sample.completion)") + 1

    wrong, right = child.judge("two", "2")

    assert wrong.verdicts == []
    assert wrong.retryable
    assert wrong.reason == (
        f"the function raised ValueError: invalid literal for int() with base 10: 'two' ({functions}:{line})"
    )
    assert right.verdicts == [Verdict(2.0, {"correct": 1.0})]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("look_up", "the function raised KeyError: 'kind'; extra of the row has a, b ("),
        ("compute_score", "the function raised KeyError: 'kind'; extra of the row has a, b ("),
        ("look_up_elsewhere", "the function raised KeyError: 1 ("),
    ],
)
def test_a_key_that_the_row_lacks_is_answered_with_those_it_has_and_one_that_another_dict_lacks_is_not(
    child: Child, functions: Path, function: str, said: str
) -> None:
    child.say(WorkerLoad(Reward(function=f"{functions}:{function}", timeout_s=1.0)))
    child.hear()

    child.say(Judge(0, [msgspec.Raw(msgspec.msgpack.encode(VerifierInput(completion="", extra={"a": 1, "b": 2})))]))
    answer = child.hear()

    assert isinstance(answer, Judged)
    assert answer.reason.startswith(said)


def test_sys_exit_in_the_function_is_reported_too(child: Child, functions: Path) -> None:
    child.say(WorkerLoad(Reward(function=f"{functions}:leave", timeout_s=1.0)))
    child.hear()

    first, second = child.judge("now", "again")

    assert "the function raised SystemExit: now" in first.reason
    assert "the function raised SystemExit: again" in second.reason


def test_a_dict_becomes_score_and_metrics(child: Child, functions: Path) -> None:
    child.say(WorkerLoad(Reward(function=f"{functions}:dictionary", timeout_s=1.0)))
    child.hear()

    assert child.judge("") == [Judged(0, [Verdict(0.5, {"correct": 0.0, "terse": 1.0})])]


def test_an_async_function_judges_a_batch_concurrently_and_only_the_slow_input_fails(
    child: Child, functions: Path
) -> None:
    child.say(WorkerLoad(Reward(function=f"{functions}:waits", timeout_s=0.3)))

    assert child.hear() == Loaded(concurrent=True)
    answers = {judged.number: judged for judged in child.judge("hang", "1", "x", "3")}
    assert "no verdict within 0.3 s" in answers[0].reason
    assert answers[1].verdicts == [Verdict(1.0, {"correct": 1.0})]
    assert "ValueError" in answers[2].reason
    assert str(functions) in answers[2].reason
    assert answers[3].verdicts == [Verdict(3.0, {"correct": 1.0})]


def test_a_plain_function_may_return_something_to_await(child: Child, functions: Path) -> None:
    child.say(WorkerLoad(Reward(function=f"{functions}:awaitable", timeout_s=1.0)))

    assert child.hear() == Loaded(concurrent=False)
    right, wrong = child.judge("2", "two")
    assert right.verdicts == [Verdict(2.0, {"correct": 1.0})]
    assert str(functions) in wrong.reason


def test_a_function_that_cannot_be_loaded_is_refused_and_the_worker_ends(
    child: Child, process: "subprocess.Popen[bytes]"
) -> None:
    child.say(WorkerLoad(Reward(function="gsm8", timeout_s=1.0)))

    answer = child.hear()

    assert isinstance(answer, UnusableVerifier)
    assert "did you mean 'gsm8k'?" in answer.reason
    assert process.wait(timeout=30) == 0


def test_the_worker_ends_with_its_stdin(child: Child, process: "subprocess.Popen[bytes]") -> None:
    child.say(WorkerLoad(Reward(function="gsm8k", timeout_s=1.0)))
    child.hear()
    assert process.stdin is not None

    process.stdin.close()

    assert process.wait(timeout=30) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")
def test_a_hanging_worker_dies_with_its_parent(tmp_path: Path) -> None:
    hang = tmp_path / "hang.py"
    hang.write_text("import os, time\ndef hang(sample):\n    os.write(2, b'hanging\\n')\n    time.sleep(3600)\n")
    parent_code = (
        "import asyncio\n"
        "from asyncrl.config.sections.reward import Reward\n"
        "from asyncrl.reward.workers.pool import WorkerPool\n"
        "from asyncrl.reward.verifier import VerifierInput\n"
        "async def main():\n"
        f"    async with WorkerPool(Reward(function={str(hang) + ':hang'!r}, timeout_s=3600)) as pool:\n"
        "        await pool.judge(VerifierInput(completion=''))\n"
        "asyncio.run(main())\n"
    )

    with subprocess.Popen([sys.executable, "-c", parent_code], stderr=subprocess.PIPE) as parent:
        assert parent.stderr is not None
        assert parent.stderr.readline() == b"hanging\n"
        os.kill(parent.pid, signal.SIGKILL)

        # the worker holds the other end of this pipe, so its death ends the stream
        assert parent.stderr.read() == b""
