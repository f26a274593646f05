"""The pool's side of a worker: a child process that is started, sent inputs, and killed with its own children."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Raw

from asyncrl.config.sections import Reward
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.workers.pipe import Judge, Judged, Load, Loaded, PipeMessage, Refused, encode, hung_message, receive

START_S = 60.0
"""Seconds to import the verifiers; heavy maths libraries take ten on a busy machine."""

REAP_S = 5.0
"""Seconds to wait for a killed process to exit; after that it is left to the kernel."""


class WorkerProcess:
    """
    One running worker; made by `start`.

    It leads a process group of its own: an interrupt from the terminal does not reach it, and `kill` also ends the
    processes that the verifier started.
    """

    def __init__(self, process: Process, timeout_s: float) -> None:
        self._process = process
        self._timeout_s = timeout_s
        self.concurrent = False
        """True if inputs are judged concurrently, as `Loaded` says."""

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    @classmethod
    async def start(cls, reward: Reward) -> "WorkerProcess":
        """Start a worker; raises `ConfigError` with the worker's message if it cannot load the verifiers."""
        command = (sys.executable, "-m", "asyncrl.reward.workers.worker")
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, start_new_session=True)
        except OSError as error:
            raise ConfigError(f"cannot start the reward worker {command[0]}: {error.strerror}") from error
        worker = cls(process, reward.timeout_s)
        try:
            await worker._load(Load(reward))
        except BaseException:
            await worker.kill()
            raise
        return worker

    async def judge(self, inputs: Sequence[Raw], settle: Callable[[Judged], None]) -> None:
        """
        Judge inputs; call ``settle`` once for each, as soon as it is judged.

        Raises:
            VerifierError: The worker hung or died before the last one. It is useless now: kill it.
        """
        # The worker cancels async verifiers itself at timeout_s; one that is silent for twice that blocks its loop.
        patience_s = self._timeout_s * (2 if self.concurrent else 1)
        clock = asyncio.get_running_loop().time
        missing = set(range(len(inputs)))
        try:
            async with asyncio.timeout(patience_s) as deadline:
                await self._send(Judge(list(inputs)))
                for _ in inputs:
                    settle(await self._judged(missing))
                    deadline.reschedule(clock() + patience_s)
        except TimeoutError as error:
            raise VerifierError(f"{hung_message(self._timeout_s)} (its worker was killed)", retryable=True) from error

    async def kill(self) -> None:
        """Kill the worker and everything in its process group. Idempotent."""
        with suppress(ProcessLookupError, PermissionError):  # has exited; macOS raises the latter for a zombie
            os.killpg(self._process.pid, signal.SIGKILL)
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is not None and stdout is not None:
            stdin.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(REAP_S):
                    await stdout.read()  # unread output would keep the pipe, and so the process object, open
                    await self._process.wait()

    async def _load(self, load: Load) -> None:
        try:
            async with asyncio.timeout(START_S):
                await self._send(load)
                answer = await self._receive()
        except TimeoutError as error:
            raise ConfigError(f"{_names(load.reward)} was not imported within {START_S:g} s") from error
        except VerifierError as error:
            raise ConfigError(f"{_names(load.reward)} ended its process when it was imported: {error}") from error
        match answer:
            case Loaded(concurrent):
                self.concurrent = concurrent
            case Refused(reason):
                raise ConfigError(reason)

    async def _judged(self, missing: set[int]) -> Judged:
        """Receive the next verdict, and remove its index from ``missing``."""
        answer = await self._receive()
        if not isinstance(answer, Judged) or answer.index not in missing:
            raise VerifierError(f"the reward worker sent an unexpected {type(answer).__name__}", retryable=True)
        missing.remove(answer.index)
        return answer

    async def _send(self, message: PipeMessage) -> None:
        assert self._process.stdin is not None, "started with a pipe"
        self._process.stdin.write(encode(message))
        with suppress(ConnectionError):  # it is dead; receiving gives its last messages and exit code
            await self._process.stdin.drain()

    async def _receive(self) -> Loaded | Refused | Judged:
        assert self._process.stdout is not None, "started with a pipe"
        answer = await receive(self._process.stdout)
        if answer is None:
            raise VerifierError(await self._cause(), retryable=True)
        return answer

    async def _cause(self) -> str:
        try:
            async with asyncio.timeout(REAP_S):
                code = await self._process.wait()
        except TimeoutError:
            return "the reward worker closed its pipe but still runs; the function must not close file descriptors"
        how = f"exited with code {code}" if code >= 0 else f"was killed by signal {-code} ({signal.strsignal(-code)})"
        return f"the reward worker died: it {how}; its last output is on stderr"


def _names(reward: Reward) -> str:
    """Name the verifiers as the configuration does."""
    if not reward.parts:
        return f"reward.function {reward.function!r}"
    return f"one of reward.parts ({', '.join(part.function for part in reward.parts)})"
