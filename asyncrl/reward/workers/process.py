"""The pool's side of a verifier worker: it is started, sent inputs, and killed."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Raw

from asyncrl.config.sections.reward import Reward
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.processes.allowance import AT_ONCE_BYTES
from asyncrl.processes.keeper import Limits
from asyncrl.processes.kept import KeptProcess
from asyncrl.reward.workers.pipe import Judge, Judged, Load, Loaded, PipeMessage, Refused, encode, hung_message, receive

START_S = 60.0
"""Seconds to import the verifiers; heavy maths libraries take ten on a busy machine."""
WORKER = (sys.executable, "-m", "asyncrl.reward.workers.worker")


class WorkerProcess:
    """One running worker; made by `start`."""

    def __init__(self, process: KeptProcess, timeout_s: float) -> None:
        self._process = process
        self._timeout_s = timeout_s
        self._judged_before = 0
        self.concurrent = False
        """True if inputs are judged concurrently, as `Loaded` says."""

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive

    @classmethod
    async def start(cls, reward: Reward, output_bytes: int = AT_ONCE_BYTES) -> "WorkerProcess":
        """
        Start a worker, which may print ``output_bytes`` at once.

        Raises:
            ConfigError: The worker cannot load the verifiers; with its message.
        """
        limits = Limits("reward", reward.memory_bytes, reward.processes, reward.file_bytes)
        try:
            process = await KeptProcess.start(WORKER, limits, output_bytes)
        except OSError as error:
            raise ConfigError(f"cannot start the reward worker {sys.executable}: {error.strerror}") from error
        worker = cls(process, reward.timeout_s)
        try:
            await worker._load(Load(reward))
        except BaseException:
            await worker.kill()
            raise
        return worker

    async def judge(self, inputs: Sequence[Raw], settle: Callable[[int, Judged], None]) -> None:
        """
        Judge inputs; call ``settle`` with the position of each once, as soon as it is judged.

        Raises:
            VerifierError: The worker hung or died before the last one. It is useless now: kill it.
        """
        # The worker cancels async verifiers itself at timeout_s; one that is silent for twice that blocks its loop.
        slack_s = self._timeout_s / 100  # a deadline that moves seldom costs less than one that moves with each verdict
        patience_s = self._timeout_s * (2 if self.concurrent else 1) + slack_s
        clock = asyncio.get_running_loop().time
        first, moved = self._judged_before, clock()
        self._judged_before += len(inputs)
        missing = set(range(first, self._judged_before))
        try:
            async with asyncio.timeout(patience_s) as deadline:
                await self._send(Judge(first, list(inputs)))
                for _ in inputs:
                    judged = await self._judged(missing)
                    settle(judged.number - first, judged)
                    if (now := clock()) - moved > slack_s:
                        deadline.reschedule(now + patience_s)
                        moved = now
        except TimeoutError as error:
            raise VerifierError(f"{hung_message(self._timeout_s)} (its worker was killed)", retryable=True) from error
        except EOFError as error:
            raise VerifierError(await self._process.cause(), retryable=True) from error

    async def cause(self) -> str:
        """Reason why a worker that is not alive has ended."""
        return await self._process.cause()

    async def kill(self) -> None:
        """Kill the worker and everything below its keeper. Idempotent."""
        await self._process.kill()

    async def _load(self, load: Load) -> None:
        try:
            async with asyncio.timeout(START_S):
                await self._send(load)
                answer = await self._receive()
        except TimeoutError as error:
            raise ConfigError(f"{_names(load.reward)} was not imported within {START_S:g} s") from error
        except EOFError as error:
            cause = await self._process.cause()
            raise ConfigError(f"{_names(load.reward)} ended its process when it was imported: {cause}") from error
        match answer:
            case Loaded(concurrent):
                self.concurrent = concurrent
            case Refused(reason):
                raise ConfigError(reason)

    async def _judged(self, missing: set[int]) -> Judged:
        """Receive the next verdict, and remove its number from ``missing``; raises `EOFError` without one."""
        answer = await self._receive()
        if not isinstance(answer, Judged) or answer.number not in missing:
            raise VerifierError(f"the reward worker sent an unexpected {type(answer).__name__}", retryable=True)
        missing.remove(answer.number)
        return answer

    async def _send(self, message: PipeMessage) -> None:
        self._process.stdin.write(encode(message))
        with suppress(ConnectionError):  # it is dead; receiving gives its last messages and exit code
            await self._process.stdin.drain()

    async def _receive(self) -> Loaded | Refused | Judged:
        answer = await receive(self._process.stdout)
        if answer is None:
            raise EOFError
        return answer


def _names(reward: Reward) -> str:
    """Name the verifiers as the configuration does."""
    if not reward.parts:
        return f"reward.function {reward.function!r}"
    return f"one of reward.parts ({', '.join(part.function for part in reward.parts)})"
