"""A worker that answers in frames, and the slot that replaces it."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar, cast

import msgspec
import pytest

from asyncrl.episodes import workers as environments
from asyncrl.errors import ConfigError
from asyncrl.reward.workers import messages as rewards
from asyncrl.workers.frames import HEADER_BYTES, framed
from asyncrl.workers.keeper import AT_ONCE_BYTES, NOTE_BYTES, PER_S_BYTES, GuardLimits
from asyncrl.workers.kept import KeptProcess
from asyncrl.workers.worker import LostInLoading, WorkerProcess, WorkerProgram, WorkerSlot, start_all

T = TypeVar("T")
ECHO = """
import sys
while header := sys.stdin.buffer.read(4):
    sys.stdout.buffer.write(header + sys.stdin.buffer.read(int.from_bytes(header, "little")))
    sys.stdout.buffer.flush()
"""
"""A worker that answers each message with itself."""


def program(source: str, start_s: float) -> WorkerProgram:
    return WorkerProgram(
        name="a worker of tests",
        command=[sys.executable, "-c", source],
        limits=GuardLimits("tests", memory_bytes=1 << 30, processes=50, file_bytes=1 << 20),
        code="the code 'x'",
        start_s=start_s,
        max_answer_bytes=100,
    )


def with_worker(source: str, use: Callable[[WorkerProcess[bytes], bytes], Awaitable[T]], start_s: float = 20.0) -> T:
    """Start a worker whose code is called ``first``; use it with its first answer."""

    async def start_and_use() -> T:
        worker, answer = await WorkerProcess.start(program(source, start_s), framed(b"first"), bytes, AT_ONCE_BYTES)
        try:
            return await use(worker, answer)
        finally:
            await worker.kill()
            await worker.kill()
            assert not worker.is_alive

    return asyncio.run(start_and_use())


async def nothing(worker: WorkerProcess[bytes], answer: bytes) -> None: ...


def test_a_worker_is_told_its_code_and_answers_in_order() -> None:
    async def ask(worker: WorkerProcess[bytes], answer: bytes) -> list[bytes]:
        for message in (b"second", b"", b"third"):
            worker.send(framed(message))
        return [answer, *[await worker.receive() for _ in range(3)]]

    assert with_worker(ECHO, ask) == [b"first", b"second", b"", b"third"]


def test_the_end_of_a_worker_is_told_with_its_cause_and_frames_to_it_are_thrown_away() -> None:
    async def end(worker: WorkerProcess[bytes], answer: bytes) -> str:
        with pytest.raises(EOFError):
            await worker.receive()
        worker.send(framed(b"too late"))
        await asyncio.sleep(0)
        return await worker.cause()

    source = "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read(9))\nsys.stdout.flush()\nsys.exit(7)"
    assert with_worker(source, end) == "the tests worker died: it exited with code 7; its last output is on stderr"


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("raise SystemExit(7)", LostInLoading, "the code 'x' ended its process when it was loaded: .* code 7"),
        ("import os; os.write(1, b'\\xff' * 9)", LostInLoading, "the code 'x' ended its process when it was loaded: "),
        ("import time; time.sleep(60)", ConfigError, "the code 'x' was not loaded within 0.5 s"),
    ],
)
def test_code_that_is_not_loaded_is_named(source: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        with_worker(source, nothing, start_s=0.5 if "sleep" in source else 20.0)


def test_a_keeper_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")

    with pytest.raises(ConfigError, match="cannot start a worker of tests: No such file or directory"):
        with_worker(ECHO, nothing)


# ── test hostile bytes ────────────────────────────────────────────────────────────────────────
# Bytes that code of users has written to the pipe, as each pool reads them.


class Written:
    """A kept process that has written these bytes, and ended."""

    def __init__(self, written: bytes) -> None:
        self.stdout = asyncio.StreamReader()
        self.stdout.feed_data(written)
        self.stdout.feed_eof()


def heard(written: bytes, decode: Callable[[bytes], T], max_answer_bytes: int) -> list[T]:
    """Answers until the pipe counts as ended."""

    async def listen() -> list[T]:
        worker = WorkerProcess(cast(KeptProcess, Written(written)), decode, max_answer_bytes)
        answers: list[T] = []
        with suppress(EOFError):
            while True:
                answers.append(await worker.receive())
        return answers

    return asyncio.run(listen())


JUDGED = rewards.encode(rewards.Judged(1, []))[HEADER_BYTES:]
NESTED = framed(bytes([JUDGED[0] + 1]) + JUDGED[1:] + b"\x91" * 60_000 + b"\x01")
"""A `Judged` with a further field, which is a deep tree."""


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x01\x00\x01\x00" + bytes(1 << 17),
        b"\xff\xff\xff\x7f",
        b"",
        b"\x05\x00",
        b"\x05\x00\x00\x00ab",
        b"\x02\x00\x00\x00hi",
        b"\x02\x00\x00\x00\xa1\xff",
        NESTED,
    ],
)
def test_half_a_message_or_nonsense_means_that_a_worker_of_rewards_is_gone(garbage: bytes) -> None:
    answer = rewards.Judged(1, [], "the function raised")

    assert heard(rewards.encode(answer) + garbage, rewards.decode, rewards.MAX_ANSWER_BYTES) == [answer]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff",
        b"\x04\x00\x00\x00oops",
        b'\x0d\x00\x00\x00{"n":"three"}',
        framed(b'{"n":3,"answer":' + b"[" * 60_000 + b"]" * 60_000 + b"}"),
    ],
)
def test_nonsense_means_that_a_worker_of_environments_is_gone(garbage: bytes) -> None:
    begun = framed(msgspec.json.encode({"n": 3, "begun": True}))

    (answer,) = heard(begun + garbage, environments.decode, environments.MAX_ANSWER_BYTES)
    assert (answer.n, answer.begun) == (3, True)


# ── test slot ─────────────────────────────────────────────────────────────────────────────────


class Stub:
    """A worker that takes two turns of the loop to start, and one to end."""

    def __init__(self, output_bytes: int) -> None:
        self.output_bytes = output_bytes
        self.is_killed = False

    async def kill(self) -> None:
        await asyncio.sleep(0)
        self.is_killed = True


class Starts:
    """Starts stubs, and notes them; each time that is in ``fails`` it raises instead."""

    def __init__(self, *fails: int) -> None:
        self.begun = 0
        self.made: list[Stub] = []
        self._fails = fails

    async def __call__(self, output_bytes: int) -> Stub:
        self.begun += 1
        number = self.begun
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if number in self._fails:
            raise ConfigError(f"start {number} failed")
        self.made.append(Stub(output_bytes))
        return self.made[-1]


def slot_of(starts: Starts, clock: Callable[[], float] = lambda: 0.0) -> WorkerSlot[Stub, str]:
    return WorkerSlot(starts, lambda running: running & {"guilty"}, clock)


def test_concurrent_callers_share_one_start_and_a_cancelled_one_does_not_end_it() -> None:
    async def start() -> None:
        slot = slot_of(starts := Starts())
        callers = [asyncio.create_task(slot.worker()) for _ in range(3)]
        await asyncio.sleep(0)
        assert slot.started is None
        callers[0].cancel()
        first, second = await asyncio.gather(*callers[1:])
        assert first is second is await slot.worker()
        assert starts.begun == 1

    asyncio.run(start())


def test_a_start_that_failed_is_told_to_its_callers_and_made_again_for_the_next() -> None:
    async def start() -> None:
        slot = slot_of(Starts(1))
        found = await asyncio.gather(slot.worker(), slot.worker(), return_exceptions=True)
        assert [str(error) for error in found] == ["start 1 failed"] * 2
        assert isinstance(await slot.worker(), Stub)

    asyncio.run(start())


def test_a_discarded_worker_ends_while_the_next_one_starts() -> None:
    async def replace() -> None:
        slot = slot_of(starts := Starts())
        first = await slot.worker()
        ending = slot.discard(first)
        assert slot.started is None
        assert not first.is_killed
        second = await slot.worker()
        await ending
        assert (first.is_killed, second.is_killed) == (True, False)
        await slot.clear()
        assert [stub.is_killed for stub in starts.made] == [True, True]

    asyncio.run(replace())


def test_clearing_kills_a_worker_that_is_starting_and_waits_for_those_that_end() -> None:
    async def clear() -> None:
        slot = slot_of(starts := Starts())
        first = await slot.worker()
        slot.discard(first)
        starting = asyncio.create_task(slot.worker())
        await asyncio.sleep(0)
        await slot.clear()
        await slot.clear()
        assert first.is_killed
        assert len(starts.made) == 1  # the second was cancelled before it was made
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(clear())


def test_the_third_loss_in_a_row_is_not_to_be_tried_again() -> None:
    async def lose() -> list[bool]:
        slot = slot_of(Starts())
        found = [slot.lose(set())[1] for _ in range(2)]
        slot.answered()
        found += [slot.lose(set())[1] for _ in range(4)]
        assert slot.replaced == 6
        return found

    assert asyncio.run(lose()) == [True, True, True, True, False, False]


def test_the_strategy_blames_unless_it_is_certain_who_hung() -> None:
    async def lose() -> list[set[str]]:
        slot, running = slot_of(Starts()), {"guilty", "innocent"}
        return [slot.lose(running)[0], slot.lose(running, is_certain=True)[0], slot.lose({"innocent"})[0]]

    assert asyncio.run(lose()) == [{"guilty"}, {"guilty", "innocent"}, set()]


def test_a_replacement_may_print_what_has_been_refilled_since_the_start_before_it() -> None:
    async def replace() -> list[int]:
        times = iter([100.0, 100.0, 110.0])
        slot = slot_of(starts := Starts(), lambda: next(times))
        for _ in range(3):
            await slot.discard(await slot.worker())
        return [stub.output_bytes for stub in starts.made]

    assert asyncio.run(replace()) == [AT_ONCE_BYTES, NOTE_BYTES, NOTE_BYTES + 10 * PER_S_BYTES]


def test_all_slots_are_started_before_an_error_is_raised() -> None:
    async def start() -> None:
        slots = [slot_of(Starts(1)), slot_of(Starts()), slot_of(Starts(1))]
        with pytest.raises(ConfigError, match="start 1 failed"):
            await start_all(slots)
        assert [slot.started is None for slot in slots] == [True, False, True]

    asyncio.run(start())
