"""
A pool of verifier workers: processes that can be killed.

    judge() ─┐                  ┌─ RewardSlot ── worker process
    judge() ─┼─ waiting ─ share ┤
    judge() ─┘                  └─ RewardSlot ── worker process

A verifier is user code, called with text of a policy that writes whatever is rewarded: it may raise, hang, use up the
memory, or call `sys.exit`. None of that harms this process, and none of it becomes a reward.
"""

import asyncio
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Raw, Struct

from asyncrl.config.sections.reward import Reward
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.log import get_logger
from asyncrl.messages.verdict_limits import MAX_REASON_CHARS, problem_of
from asyncrl.reward.verifier import GroupMember, Verdict, VerifierInput
from asyncrl.reward.workers.messages import (
    MAX_ANSWER_BYTES,
    MAX_GROUP_BYTES,
    FromWorker,
    Judge,
    Judgeable,
    Judged,
    Loaded,
    UnusableVerifier,
    WorkerLoad,
    decode,
    encode,
    hung_message,
)
from asyncrl.workers.child import module_command
from asyncrl.workers.keeper import AT_ONCE_BYTES, GuardLimits
from asyncrl.workers.worker import LOST_IN_A_ROW, WorkerProcess, WorkerProgram, WorkerSlot, start_all

# ── process ───────────────────────────────────────────────────────────────────────────────────
# The pool's side of a verifier worker: it is started, sent inputs, and killed.

START_S = 60.0
"""Seconds to import the verifiers; heavy maths libraries take ten on a busy machine."""
WORKER = tuple(module_command("asyncrl.reward.workers.worker"))


class RewardProcess:
    """One running worker; made by `start`."""

    def __init__(self, process: WorkerProcess[FromWorker], timeout_s: float, *, concurrent: bool) -> None:
        self.process = process
        self._timeout_s = timeout_s
        self._judged_before = 0
        self.concurrent = concurrent
        """True if inputs are judged concurrently, as `Loaded` says."""

    @classmethod
    async def start(
        cls, reward: Reward, output_bytes: int = AT_ONCE_BYTES, variables: Mapping[str, str] | None = None
    ) -> "RewardProcess":
        """
        Start a worker, which may print ``output_bytes`` at once, with ``variables`` in its environment.

        Raises:
            ConfigError: The worker cannot load the verifiers; with its message.
        """
        program = WorkerProgram(
            name=f"the reward worker {sys.executable}",
            command=WORKER,
            limits=GuardLimits("reward", reward.memory_bytes, reward.processes, reward.file_bytes),
            code=_names(reward),
            loaded="imported",
            start_s=START_S,
            max_answer_bytes=MAX_GROUP_BYTES if reward.group else MAX_ANSWER_BYTES,
            variables=variables or {},
        )
        process, answer = await WorkerProcess.start(program, encode(WorkerLoad(reward)), decode, output_bytes)
        if isinstance(answer, UnusableVerifier):
            await process.kill()
            raise ConfigError(answer.reason)
        return cls(process, reward.timeout_s, concurrent=isinstance(answer, Loaded) and answer.concurrent)

    async def judge(self, inputs: Sequence[Raw], sizes: Sequence[int], settle: Callable[[int, Judged], None]) -> None:
        """
        Judge inputs; call ``settle`` with the position of each once, as soon as it is judged.

        Args:
            sizes: [inputs] verdicts wanted on each: 1, or those on a group, which has so many times as long.

        Raises:
            VerifierError: The worker hung or died before the last one. It is useless now: kill it.
        """
        # The worker cancels async verifiers itself at timeout_s; one that is silent for twice that blocks its loop.
        slack_s = self._timeout_s / 100  # a deadline that moves seldom costs less than one that moves with each verdict
        limits_s = [self._timeout_s * size for size in sizes]
        if self.concurrent:
            limits_s = [2 * max(limits_s)] * len(limits_s)
        limit_s = limits_s[0]
        clock = asyncio.get_running_loop().time
        first, moved = self._judged_before, clock()
        self._judged_before += len(inputs)
        missing = set(range(first, self._judged_before))
        try:
            async with asyncio.timeout(limit_s + slack_s) as deadline:
                self.process.send(encode(Judge(first, list(inputs))))
                for following_s in [*limits_s[1:], limits_s[-1]]:
                    judged = await self._judged(missing)
                    settle(judged.number - first, judged)
                    if (now := clock()) - moved > slack_s or following_s != limit_s:
                        deadline.reschedule(now + following_s + slack_s)
                        moved, limit_s = now, following_s
        except TimeoutError as error:
            hung = hung_message(limit_s / 2 if self.concurrent else limit_s)
            raise VerifierError(f"{hung} (its worker was killed)", retryable=True) from error
        except EOFError as error:
            raise VerifierError(await self.process.cause(), retryable=True) from error

    async def kill(self) -> None:
        """Kill the worker and everything below its keeper. Idempotent."""
        await self.process.kill()

    async def _judged(self, missing: set[int]) -> Judged:
        """Receive the next verdict, and remove its number from ``missing``; raises `EOFError` without one."""
        answer = await self.process.receive()
        if not isinstance(answer, Judged) or answer.number not in missing:
            raise VerifierError(f"the reward worker sent an unexpected {type(answer).__name__}", retryable=True)
        missing.remove(answer.number)
        return answer


def _names(reward: Reward) -> str:
    """Name the verifiers as the configuration does."""
    group = f" or reward.group {reward.group!r}" if reward.group else ""
    if not reward.parts:
        return f"reward.function {reward.function!r}{group}"
    return f"one of reward.parts ({', '.join(part.function for part in reward.parts)}){group}"


# ── worker slot ───────────────────────────────────────────────────────────────────────────────
# One worker of a pool: replaced when it is lost, with the input found that made it fail.
#
#     inputs a b c d ── the worker is lost ──▶ judged in order:       a fails; b c d go to the next worker
#                                              judged concurrently:   a, b, c, d are repeated one by one; an input that
#                                                                     loses its worker alone fails
#
# A worker that has judged before and now only fails is replaced too: the function may have damaged its own process.

log = get_logger()

FAILED_IN_A_ROW = 3
"""Failures that may come back, from which on a worker that has judged before is replaced."""
START_SHARE = 30
"""A worker is replaced for failures only if it is this many times older than its start took: a start costs seconds."""


class PendingVerdict(Struct, frozen=True, eq=False):
    """An encoded input, and the future of its verdicts: one, or of a group one on each of its trajectories."""

    inputs: Raw
    size: int
    """Verdicts that it needs."""
    verdicts: "asyncio.Future[list[Verdict]]"

    def settle(self, judged: Judged) -> None:
        """Set the result or the error; a future that was cancelled is left alone."""
        verdicts = judged.verdicts
        if not verdicts:
            self.fail(VerifierError(judged.reason[:MAX_REASON_CHARS], retryable=judged.retryable))
        elif problem := self._problem_of(verdicts):
            self.fail(VerifierError(f"the reward worker sent no verdict: {problem}"))
        elif not self.verdicts.done():
            self.verdicts.set_result(verdicts)

    def fail(self, error: VerifierError) -> None:
        if not self.verdicts.done():
            self.verdicts.set_exception(error)

    def _problem_of(self, verdicts: Sequence[Verdict]) -> str:
        if len(verdicts) != self.size:
            return f"{len(verdicts)} verdicts in place of {self.size}"
        problems = (problem_of(verdict.reward, verdict.metrics, verdict.answer) for verdict in verdicts)
        return next(filter(None, problems), "")


class WorkerRecord:
    """Successes and failures of one worker, which may make it suspect."""

    def __init__(self, started_at: float, start_s: float) -> None:
        self._suspect_from = started_at + START_SHARE * start_s
        self._has_judged = False
        self._failed_in_a_row = 0

    def settled(self, judged: Judged) -> None:
        if judged.verdicts:
            self._has_judged = True
            self._failed_in_a_row = 0
        elif judged.retryable:
            self._failed_in_a_row += 1

    def is_suspect(self, now: float) -> bool:
        return self._has_judged and self._failed_in_a_row >= FAILED_IN_A_ROW and now >= self._suspect_from


class RewardSlot(WorkerSlot[RewardProcess, int]):
    def __init__(
        self,
        reward: Reward,
        variables: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(self._start_one, one_alone, clock)
        self._reward = reward
        self._variables = variables
        self._record = WorkerRecord(0.0, 0.0)

    async def fill(self) -> RewardProcess:
        """Return the worker, a new one if it is dead; raises `ConfigError` if that cannot load the verifiers."""
        if (idle := self.started) and not idle.process.is_alive:
            log.warning("worker.lost", cause=await idle.process.cause())
            await asyncio.shield(self.discard(idle))
        return await self.worker()

    async def judge(self, batch: Sequence[PendingVerdict]) -> None:
        batches = deque([list(batch)])
        while batches:
            part = batches.popleft()
            try:
                batches.extendleft(reversed(await self._attempt(await self.fill(), part)))
            except ConfigError as error:
                _fail(part, VerifierError(f"a lost reward worker could not be replaced: {error}", retryable=True))

    async def _start_one(self, output_bytes: int) -> RewardProcess:
        begun = self._clock()
        worker = await RewardProcess.start(self._reward, output_bytes, self._variables)
        now = self._clock()
        self._record = WorkerRecord(now, now - begun)
        return worker

    async def _attempt(self, worker: RewardProcess, batch: Sequence[PendingVerdict]) -> list[list[PendingVerdict]]:
        """Judge a batch; if the worker is lost, return the batches to try next."""
        left = dict(enumerate(batch))  # with cancelled ones: the worker still judges them

        def settle(place: int, judged: Judged) -> None:
            left.pop(place).settle(judged)
            self._record.settled(judged)
            self.answered()

        try:
            sizes = [pending.size for pending in batch]
            await worker.judge([pending.inputs for pending in batch], sizes, settle)
        except VerifierError as error:
            log.warning("worker.lost", cause=str(error))
            blamed, error.retryable = self.lose(set(left) if worker.concurrent else set(list(left)[:1]))
            await asyncio.shield(self.discard(worker))
            _fail([left.pop(place) for place in blamed], error)
            return _repeated(list(left.values()), error, is_known=bool(blamed))
        if self._record.is_suspect(self._clock()):
            self.replaced += 1
            await asyncio.shield(self.discard(worker))
        return []


def one_alone(places: set[int]) -> set[int]:
    """Blame an input that was judged alone; of several each may be innocent, so they are repeated one by one."""
    return places if len(places) == 1 else set()


def _repeated(left: list[PendingVerdict], error: VerifierError, *, is_known: bool) -> list[list[PendingVerdict]]:
    """Batches of the inputs left, if it is known which other input lost the worker, or is not."""
    if not is_known:
        return [[pending] for pending in left]
    if not error.retryable:  # a function that hangs each time would take a timeout for every one
        reason = f"not judged after {LOST_IN_A_ROW} lost workers in a row: {error}"
        _fail(left, VerifierError(reason, retryable=True))
        return []
    return [left] if left else []


def _fail(batch: Sequence[PendingVerdict], error: VerifierError) -> None:
    for pending in batch:
        pending.fail(error)


# ── pool ──────────────────────────────────────────────────────────────────────────────────────

MAX_BATCH = 64
"""Inputs in one frame to a worker: enough that the pipe costs little, few enough that one that hangs delays few."""


class WorkerPool:
    """
    ``reward.workers`` worker processes that judge inputs, with ``variables`` in their environment.

    Example:
        async with WorkerPool(Reward(function="gsm8k")) as pool:
            verdict = await pool.judge(VerifierInput(completion="#### 4", answer="4"))
    """

    def __init__(self, reward: Reward, variables: Mapping[str, str] | None = None) -> None:
        self._slots = [RewardSlot(reward, variables) for _ in range(reward.workers)]
        self._waiting: asyncio.Queue[PendingVerdict] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def __len__(self) -> int:
        """Number of workers."""
        return len(self._slots)

    @property
    def replaced(self) -> int:
        """Number of workers so far that hung or died."""
        return sum(slot.replaced for slot in self._slots)

    async def start(self) -> None:
        """Start all workers; raises `ConfigError`, and leaves none running, if a verifier cannot be loaded."""
        try:
            await start_all(self._slots)
        except BaseException:
            await self.aclose()
            raise
        self._tasks = [asyncio.create_task(self._serve(slot)) for slot in self._slots]

    async def judge(self, inputs: VerifierInput) -> Verdict:
        """
        Judge one completion. Concurrent calls share frames to the workers.

        Raises:
            VerifierError: The verifier raised, hung, or returned no finite number, or its worker died; ``retryable``
                if another attempt may succeed.
        """
        return (await self._judge(inputs, 1))[0]

    async def judge_group(self, members: list[GroupMember]) -> list[Verdict]:
        """Compare the trajectories of one group by ``reward.group``: a verdict on each. Raises as `judge` does."""
        return await self._judge(members, len(members))

    async def _judge(self, inputs: Judgeable, size: int) -> list[Verdict]:
        if self._closed or not self._tasks:
            raise VerifierError(
                f"the reward pool {'was closed' if self._closed else 'was not started'}", retryable=True
            )
        try:
            encoded = Raw(msgspec.msgpack.encode(inputs))
        except UnicodeEncodeError as error:
            raise VerifierError(f"the verifier's input is no valid text: {error.reason} at {error.start}") from error
        pending = PendingVerdict(encoded, size, asyncio.get_running_loop().create_future())
        self._waiting.put_nowait(pending)
        return await pending.verdicts

    async def aclose(self) -> None:
        """Kill every worker and the processes it started; fail all pending calls of `judge`. Idempotent."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(slot.clear() for slot in self._slots))
        while not self._waiting.empty():
            self._waiting.get_nowait().fail(_closed())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _serve(self, slot: RewardSlot) -> None:
        while True:
            batch = await self._next_batch()
            error = _closed()
            try:
                await slot.judge(batch)
            except Exception as fault:  # noqa: BLE001  costs its batch: a task that ended would grade no more
                place = traceback.extract_tb(fault.__traceback__)[-1]
                cause = f"{type(fault).__name__}: {fault} at {Path(place.filename).name}:{place.lineno}"
                log.error("pool.failed", cause=cause)
                error = VerifierError(f"the reward pool failed: {cause}", retryable=True)
            finally:
                _fail(batch, error)

    async def _next_batch(self) -> list[PendingVerdict]:
        """
        Take one slot's share of the waiting inputs, so that a slow verifier keeps all workers busy.

        It is never empty: callers that have gone, as all do when the broker restarts, are passed over.
        """
        while True:
            batch = [await self._waiting.get()]
            share = min(MAX_BATCH, -(-(self._waiting.qsize() + 1) // len(self._slots)))
            while len(batch) < share:
                batch.append(self._waiting.get_nowait())
            if wanted := [pending for pending in batch if not pending.verdicts.done()]:
                return wanted


def _closed() -> VerifierError:
    return VerifierError("the reward pool was closed before the verdict", retryable=True)
