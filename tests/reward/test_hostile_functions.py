"""
Hostile reward functions in a pool: each costs its own verdict and nothing else.

After each, the next honest input is judged, no process is left but keeper and worker, and little was printed.
"""

import asyncio
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from asyncrl.config.sections.reward import Reward
from asyncrl.errors import VerifierError
from asyncrl.reward.verifier import Verdict, VerifierInput
from asyncrl.reward.workers.pool import WorkerPool
from asyncrl.workers import folders
from asyncrl.workers.keeper import AT_ONCE_BYTES, PER_S_BYTES
from tests.reward.hostile_functions import LEFT_BEHIND

FUNCTIONS = Path(__file__).with_name("hostile_functions.py")
TIMEOUT_S = 1.0
PATIENT_S = 20.0
"""Timeout for functions that fail before it, on a busy machine too."""
SLACK_S = 60.0
"""Seconds beyond the timeout for a busy machine to notice the loss and start a worker."""
SETTLE_S = 10.0
HUNG = "hung: no verdict within 1 s"
LOST = "must not send signals"
PIPE = "must leave file descriptors alone"

AT_ONCE = {
    "exits": "raised SystemExit: 3",
    "exits_at_once": "exited with code 9",
    "aborts": "killed by signal 6",
    "segfaults": "killed by signal 11",
    "recurses": "raised RecursionError",
    "overflows_the_stack": "killed by signal 11|raised RecursionError",  # the second on Python 3.13
    "is_killed_by_its_alarm": "killed by signal 14",
    "exits_slowly": "raised KeyboardInterrupt",
    "kills_its_parent": LOST,
    "prints_much_and_raises": "raised RuntimeError: after forty megabytes",
    "daemonizes": "raised RuntimeError: ten daemons",
    "leaves_children": "exited with code 4",
    "forks_and_returns_twice": "returned nan",
    "starts_threads": "raised RuntimeError: four threads spin",
    "bombs": "processes, more than reward.processes = 40",
    "hoards": "bytes of memory, more than reward.memory_bytes = 536,870,912",
    "lets_a_child_hoard": "bytes of memory, more than reward.memory_bytes",
    "writes_a_file_forever": "File too large .*reward.file_bytes",
    "closes_everything": "exited with code 120|exited with code 1|" + PIPE,
    "writes_to_every_descriptor": PIPE,
    "announces_gigabytes": PIPE,
    "answers_with_a_deep_tree": PIPE,
    "forges_a_reward": r"the reward is 1e\+308",
    "patches_the_codec": PIPE,
    "forgets_its_modules": "raised RuntimeError: no modules",
    "breaks_isinstance": "raised TypeError|exited with code 1",
    "lowers_its_limits": "raised RuntimeError: no files",
    "removes_its_folder": "raised FileNotFoundError",
    "returns_nan": "returned nan",
    "returns_infinity": "returned -inf",
    "returns_the_largest_double": r"returned 1e\+308",
    "returns_a_huge_int": "an enormous int",
    "returns_nothing": "returned None",
    "returns_a_text": "returned '1.01",
    "returns_a_broken_number": "raised ArithmeticError: not today",
    "returns_no_score": "expected a number or a dict with 'score'",
    "returns_many_metrics": "metrics, expected at most 64",
    "returns_endless_metrics": "metrics, expected at most 64",
    "returns_a_long_name": "a metric's name has 10000000 characters",
    "returns_a_nan_metric": "as metric 'loss', returned nan",
    "raises_without_text": "its text cannot be shown",
    "raises_a_gigabyte": "raised Loud: loud loud",
    "raises_half_a_character": r"raised ValueError: \\ud800",
    "raises_generator_exit": "raised GeneratorExit",
    "raises_our_error_at_length": "^v+$",
}
"""Cause by function, of those that fail before the timeout."""
AFTER_THE_TIMEOUT = {
    "becomes_another_program": PIPE + "|exited with code 127",
    "sleeps": HUNG,
    "spins": HUNG,
    "holds_the_interpreter": HUNG,
    "computes_forever": HUNG,
    "ignores_signals": HUNG,
    "stops_itself": HUNG,
    "returns_what_never_comes": HUNG,
    "traces_itself": HUNG,
    "survives_its_parent": HUNG,
    "stops_its_parent": HUNG,
    "terminates_its_parent": HUNG + "|" + LOST,
    "prints_forever": HUNG,
    "prints_to_a_descriptor_forever": HUNG,
    "lets_a_child_print": HUNG,
    "bombs_with_bombs": HUNG + "|processes, more than",
    "closes_everything_and_hangs": HUNG + "|" + PIPE,
    "returns_a_slow_number": HUNG,
}
"""Cause by function, of those that only a killed worker ends."""


class Court:
    """A pool of one worker in a loop of its own, with its output in a file."""

    def __init__(self, log: Path, timeout_s: float) -> None:
        self.log = log
        self._others = {process.pid for process in folders.below(os.getpid())}
        self._runner = asyncio.Runner()
        limits = {"memory_bytes": 512 << 20, "processes": 40, "file_bytes": 4 << 20}
        self._pool = WorkerPool(Reward(function=f"{FUNCTIONS}:score", timeout_s=timeout_s, **limits))  # type: ignore[arg-type]
        self.started_at = time.monotonic()
        with self._output_in_log():
            self._runner.run(self._pool.start())

    def judge(self, completion: str) -> Verdict | VerifierError:
        with self._output_in_log():
            return self._runner.run(self._judged(completion))

    def running(self) -> list[folders.Process]:
        """Processes of the pool; those that have exited, and wait for their parent, have no memory."""
        found = [process for process in folders.below(os.getpid()) if process.pid not in self._others]
        return [process for process in found if process.resident_bytes]

    def close(self) -> None:
        self._runner.run(self._pool.aclose())
        self._runner.close()

    async def _judged(self, completion: str) -> Verdict | VerifierError:
        try:
            return await self._pool.judge(VerifierInput(completion=completion, answer="0.75"))
        except VerifierError as error:
            return error

    @contextmanager
    def _output_in_log(self) -> Iterator[None]:
        saved = os.dup(2)
        with self.log.open("ab") as log:
            os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)


@pytest.fixture(scope="module", params=[PATIENT_S])
def court(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    court = Court(tmp_path_factory.mktemp("court") / "stderr", request.param)
    yield court
    court.close()
    assert left_behind() == []
    assert court.running() == []


def left_behind() -> list[int]:
    """Processes that a hostile function has started, wherever they are now."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [pid for pid in pids if _command(pid) == LEFT_BEHIND or _command(pid) == ["yes"]]


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def assert_contained(court: Court) -> None:
    """An honest input is judged within a broker's three attempts; keeper and worker are alone; little is printed."""
    attempts = [court.judge("honest") for _ in range(3)]
    assert Verdict(0.75, {"correct": 0.0}, "fine") in attempts, attempts
    deadline = time.monotonic() + SETTLE_S
    while (len(court.running()) > 2 or left_behind()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left_behind() == []
    assert len(court.running()) == 2
    elapsed_s = time.monotonic() - court.started_at
    assert court.log.stat().st_size < AT_ONCE_BYTES + 2 * PER_S_BYTES * elapsed_s + (1 << 16)


@pytest.mark.slow("waits for limits of time that are those of a real run")
@pytest.mark.parametrize("name", AT_ONCE)
def test_a_function_that_does_harm_fails_its_own_verdict_only(court: Court, name: str) -> None:
    begun = time.monotonic()
    outcome = court.judge(name)
    took_s = time.monotonic() - begun

    assert isinstance(outcome, VerifierError)
    assert re.search(AT_ONCE[name], str(outcome)), str(outcome)
    assert len(str(outcome)) <= 1000
    assert took_s < PATIENT_S
    assert_contained(court)


@pytest.mark.slow("waits for limits of time that are those of a real run")
@pytest.mark.parametrize("court", [TIMEOUT_S], indirect=True)
@pytest.mark.parametrize("name", AFTER_THE_TIMEOUT)
def test_a_function_that_never_answers_fails_after_one_timeout(court: Court, name: str) -> None:
    begun = time.monotonic()
    outcome = court.judge(name)
    took_s = time.monotonic() - begun

    assert isinstance(outcome, VerifierError)
    assert re.search(AFTER_THE_TIMEOUT[name], str(outcome)), str(outcome)
    assert took_s < TIMEOUT_S + SLACK_S
    assert_contained(court)
