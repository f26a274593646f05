"""The pool's side of a worker: it is started below a keeper, sent inputs, and ended with all that it has started."""

import asyncio
import os
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Raw, Struct

from asyncrl.config.sections import Reward
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.workers import cgroup, process_tree
from asyncrl.reward.workers.allowance import AT_ONCE_BYTES
from asyncrl.reward.workers.pipe import Judge, Judged, Load, Loaded, PipeMessage, Refused, encode, hung_message, receive

START_S = 60.0
"""Seconds to import the verifiers; heavy maths libraries take ten on a busy machine."""

END_S = 5.0
"""Seconds for the keeper to end its worker, before it is killed itself."""
CLOSED_S = 1.0
"""Seconds for a worker that has closed its pipe to exit."""
SWEEPS = 3
"""Looks at all processes of the machine: a process may start another one between a look and its end."""
CLOSE_LOOKS, CLOSE_LOOK_S = 200, 0.02
"""Attempts to remove a cgroup whose processes have been killed, and seconds between them."""
REPORT_BYTES = 4096
MARK = "ASYNCRL_REWARD_WORKER"
"""Environment variable of a keeper and all below it, with a name of its own: how they are found without the keeper."""


class Traces(Struct, frozen=True):
    """Marks that lead to the processes of a worker, and the pipe with the cause of its end."""

    mark: str
    report: int
    """Pipe on which the keeper tells the cause; not blocking."""
    group: Path | None

    def cause(self) -> str:
        """Read why the worker ended; empty if the keeper has told no cause."""
        with suppress(BlockingIOError):
            return os.read(self.report, REPORT_BYTES).decode("utf-8", "replace")
        return ""

    def sweep(self) -> None:
        """Kill what a killed keeper has left; a process that has cleared its environment is found by cgroup only."""
        if self.group:
            cgroup.kill(self.group)
        for _ in range(SWEEPS):
            process_tree.kill(process_tree.marked(self.mark))

    async def close(self) -> None:
        os.close(self.report)
        for _ in range(CLOSE_LOOKS):
            if not self.group or cgroup.remove(self.group):
                return
            await asyncio.sleep(CLOSE_LOOK_S)


class WorkerProcess:
    """
    One running worker; made by `start`.

    Its keeper leads a session of its own: an interrupt from the terminal does not reach it, and `kill` also ends the
    processes that the verifier started.
    """

    def __init__(self, keeper: Process, traces: Traces, timeout_s: float) -> None:
        self._keeper = keeper
        self._traces: Traces | None = traces
        """None once the worker is killed."""
        self._timeout_s = timeout_s
        self._judged_before = 0
        self.concurrent = False
        """True if inputs are judged concurrently, as `Loaded` says."""

    @property
    def is_alive(self) -> bool:
        return self._keeper.returncode is None

    @classmethod
    async def start(cls, reward: Reward, output_bytes: int = AT_ONCE_BYTES) -> "WorkerProcess":
        """
        Start a worker, which may print ``output_bytes`` at once.

        Raises:
            ConfigError: The worker cannot load the verifiers; with its message.
        """
        name = f"asyncrl-reward-{secrets.token_hex(8)}"
        reader, report = os.pipe()
        os.set_blocking(reader, False)
        traces = Traces(f"{MARK}={name}", reader, cgroup.make(name))
        try:
            keeper = await asyncio.create_subprocess_exec(
                *_command(reward, report, output_bytes, traces.group),
                stdin=PIPE,
                stdout=PIPE,
                start_new_session=True,
                pass_fds=(report,),
                env=os.environ | {MARK: name},
            )
        except BaseException as error:
            await traces.close()
            if isinstance(error, OSError):
                raise ConfigError(f"cannot start the reward worker {sys.executable}: {error.strerror}") from error
            raise
        finally:
            os.close(report)
        worker = cls(keeper, traces, reward.timeout_s)
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
            raise VerifierError(await self._cause(), retryable=True) from error

    async def kill(self) -> None:
        """Kill the worker and everything below its keeper. Idempotent."""
        if self._traces is None:
            return
        traces, self._traces = self._traces, None
        try:
            self._ask_to_end()
            was_killed = bool(self._keeper.returncode)
            if was_killed or not await self._has_exited() or self._keeper.returncode != 0:
                with suppress(ProcessLookupError):
                    self._keeper.kill()
                traces.sweep()
                await self._has_exited()
        finally:
            await traces.close()

    def _ask_to_end(self) -> None:
        assert self._keeper.stdin is not None, "started with a pipe"
        if not self._keeper.stdin.is_closing():
            self._keeper.stdin.transport.abort()  # input that nobody reads any more is thrown away
        with suppress(ProcessLookupError):
            self._keeper.terminate()
            self._keeper.send_signal(signal.SIGCONT)  # the function may have stopped it

    async def _has_exited(self) -> bool:
        """Wait for the keeper, and for the end of the worker's output; False if that takes too long."""
        assert self._keeper.stdout is not None, "started with a pipe"
        try:
            async with asyncio.timeout(END_S):
                while await self._keeper.stdout.read(1 << 16):
                    pass  # unread output would keep the pipe, and so the process object, open
                await self._keeper.wait()
        except TimeoutError:
            return False
        return True

    async def _load(self, load: Load) -> None:
        try:
            async with asyncio.timeout(START_S):
                await self._send(load)
                answer = await self._receive()
        except TimeoutError as error:
            raise ConfigError(f"{_names(load.reward)} was not imported within {START_S:g} s") from error
        except EOFError as error:
            cause = await self._cause()
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
        assert self._keeper.stdin is not None, "started with a pipe"
        self._keeper.stdin.write(encode(message))
        with suppress(ConnectionError):  # it is dead; receiving gives its last messages and exit code
            await self._keeper.stdin.drain()

    async def _receive(self) -> Loaded | Refused | Judged:
        assert self._keeper.stdout is not None, "started with a pipe"
        answer = await receive(self._keeper.stdout)
        if answer is None:
            raise EOFError
        return answer

    async def _cause(self) -> str:
        """Tell why there is no answer; waits for the keeper's account, which a living worker has none of."""
        try:
            async with asyncio.timeout(CLOSED_S):
                code = await self._keeper.wait()
        except TimeoutError:
            return (
                "the function closed the pipe of the reward worker or wrote to it, and its worker was killed; "
                "it must leave file descriptors alone that it has not opened"
            )
        if told := self._traces.cause() if self._traces else "":
            return f"the reward worker died: {told}; its last output is on stderr"
        return (
            f"the reward worker was lost with its parent, which ended with code {code}; "
            f"the function must not send signals to processes that it has not started"
        )


def _command(reward: Reward, report: int, output_bytes: int, group: Path | None) -> list[str]:
    numbers = (report, output_bytes, reward.memory_bytes, reward.processes, reward.file_bytes)
    keeper, worker = "asyncrl.reward.workers.keeper", "asyncrl.reward.workers.worker"
    return [sys.executable, "-m", keeper, *map(str, numbers), str(group or ""), sys.executable, "-m", worker]


def _names(reward: Reward) -> str:
    """Name the verifiers as the configuration does."""
    if not reward.parts:
        return f"reward.function {reward.function!r}"
    return f"one of reward.parts ({', '.join(part.function for part in reward.parts)})"
