"""
A worker that answers in frames, and the slot that holds it: the pool's side, whatever the worker runs.

    WorkerSlot ── start ─▶ WorkerProcess ── frames ─▶ worker         below a keeper: see `kept`
        ▲                        │
        └── lose ◀─── it hung, died, or wrote no frame               who is to blame, and may it be tried again?

A pool says which program it starts, speaks to it in messages of its own, kills it after a deadline of its own, and
gives each slot a strategy for blame. All else that a lost worker needs is here.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.workers.frames import Frames, NotAFrame
from asyncrl.workers.keeper import AT_ONCE_BYTES, GuardLimits, refilled
from asyncrl.workers.kept import KeptProcess

CHUNK_BYTES = 1 << 18
LOST_IN_A_ROW = 3
"""Workers lost without an answer in between, from which on a loss is not tried again: the code is to blame."""

A = TypeVar("A")


# ── process ───────────────────────────────────────────────────────────────────────────────────


class WorkerProgram(Struct, frozen=True, kw_only=True):
    """A program that a pool starts, and the words for it in messages."""

    name: str
    """Name of the worker, such as ``the reward worker``."""
    command: Sequence[str]
    limits: GuardLimits
    code: str
    """Name of the code that it loads, as the configuration has it."""
    loaded: str = "loaded"
    """Participle for the loading of that code."""
    start_s: float
    """Seconds to load the code."""
    max_answer_bytes: int
    """Longest message from the worker."""
    variables: Mapping[str, str] = {}
    """Added to the environment of this process."""
    has_folder: bool = False
    """The worker has a temporary folder of its own."""


class LostInLoading(ConfigError):
    """A worker ended while it loaded its code: the code may have ended it, or somebody killed it."""


class WorkerProcess(Generic[A]):
    """
    One running worker; made by `start`.

    Args:
        decode: Makes an answer of a message; raises `msgspec.DecodeError` if it is none.
    """

    def __init__(self, process: KeptProcess, decode: Callable[[bytes], A], max_answer_bytes: int) -> None:
        self._process = process
        self._decode = decode
        self._frames = Frames(max_answer_bytes)
        self._outgoing: list[bytes] = []
        self._clock = asyncio.get_running_loop().time
        self.heard_at = self._clock()
        """Time of the loop at which the worker last wrote something."""

    @classmethod
    async def start(
        cls, program: WorkerProgram, load: bytes, decode: Callable[[bytes], A], output_bytes: int
    ) -> "tuple[WorkerProcess[A], A]":
        """
        Start a worker and let it load its code.

        Args:
            load: Frame that tells it the code.
            output_bytes: Bytes that it may print at once.

        Returns:
            The worker and its first answer.

        Raises:
            ConfigError: It cannot be started, or loads for too long.
            LostInLoading: It ended before it had answered.
        """
        try:
            process = await KeptProcess.start(
                program.command, program.limits, output_bytes, program.variables, has_folder=program.has_folder
            )
        except OSError as error:
            raise ConfigError(f"cannot start {program.name}: {error.strerror}") from error
        worker = cls(process, decode, program.max_answer_bytes)
        try:
            return worker, await worker._load(program, load)
        except BaseException:
            await worker.kill()
            raise

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive

    def send(self, frame: bytes) -> None:
        """Send a frame, together with all of this turn of the loop; one to a dead worker is thrown away."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(frame)

    async def receive(self) -> A:
        """Receive the next answer; raises `EOFError` if the worker has ended, or wrote something else."""
        while (message := self._frames.take()) is None:
            self._frames.feed(await self._read())
            self.heard_at = self._clock()
        try:
            return self._decode(message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NotAFrame from error

    async def cause(self) -> str:
        """Reason why there is no answer; call it after `receive` has raised, or once the worker is not alive."""
        return await self._process.cause()

    async def kill(self) -> None:
        """Kill the worker and all that it has started. Idempotent."""
        await self._process.kill()

    async def _load(self, program: WorkerProgram, load: bytes) -> A:
        self.send(load)
        try:
            async with asyncio.timeout(program.start_s):
                return await self.receive()
        except TimeoutError as error:
            raise ConfigError(f"{program.code} was not {program.loaded} within {program.start_s:g} s") from error
        except EOFError as error:
            cause = await self.cause()
            raise LostInLoading(f"{program.code} ended its process when it was {program.loaded}: {cause}") from error

    async def _read(self) -> bytes:
        try:
            chunk = await self._process.stdout.read(CHUNK_BYTES)
        except ConnectionError as error:
            raise EOFError from error
        if not chunk:
            raise EOFError
        return chunk

    def _flush(self) -> None:
        if not self._process.stdin.is_closing():
            self._process.stdin.write(b"".join(self._outgoing))
        self._outgoing.clear()


# ── slot ──────────────────────────────────────────────────────────────────────────────────────


class Killable(Protocol):
    """Whatever a pool makes of a worker process."""

    async def kill(self) -> None:
        """Kill it and all that it has started. Idempotent."""


W = TypeVar("W", bound=Killable)
K = TypeVar("K", bound=Hashable)
Blame = Callable[[set[K]], set[K]]
"""
Strategy of a pool: those to blame for a worker's death, of all that it was running. Whoever is not to blame is tried
again elsewhere, as if nothing had happened.
"""


class WorkerSlot(Generic[W, K]):
    """
    Holds one worker, starts another one when it is lost, and counts losses in a row.

    Args:
        start: Starts a worker, which may print so many bytes at once.
    """

    def __init__(
        self, start: Callable[[int], Awaitable[W]], blame: Blame[K], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._start = start
        self._blame = blame
        self._clock = clock
        self._starting: asyncio.Task[W] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._started_at: float | None = None
        self._lost_in_a_row = 0
        self.started: W | None = None
        """The worker, if there is one that has started."""
        self.replaced = 0
        """Workers so far that hung or died."""

    async def worker(self) -> W:
        """Return the worker, when it has started; concurrent callers share one start, and what it raises."""
        if self.started is not None:
            return self.started
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._replacement())
        return await asyncio.shield(self._starting)

    def answered(self) -> None:
        """Note that the worker has answered: it is not lost for nothing."""
        self._lost_in_a_row = 0

    def lose(self, running: set[K], *, is_certain: bool = False) -> tuple[set[K], bool]:
        """
        Count the loss of the worker; it is still to be discarded.

        Args:
            running: All that it was running.
            is_certain: All of them are to blame, because they took too long. Otherwise the strategy decides.

        Returns:
            Those to blame, and whether they may be tried again.
        """
        self.replaced += 1
        self._lost_in_a_row += 1
        return running if is_certain else self._blame(running), self._lost_in_a_row < LOST_IN_A_ROW

    def discard(self, worker: W) -> "asyncio.Task[None]":
        """Kill the worker, in a task; the next call of `worker` starts another one, meanwhile if need be."""
        self.started = None
        ending = asyncio.create_task(worker.kill())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    async def clear(self) -> None:
        """Kill the worker, also one that is starting, and wait for those that are being killed. Idempotent."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self.started is not None:
            self.discard(self.started)
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _replacement(self) -> W:
        """Start a worker; it may print what the one before it has left of its allowance."""
        now, before = self._clock(), self._started_at
        self._started_at = now
        self.started = await self._start(AT_ONCE_BYTES if before is None else refilled(now - before))
        return self.started


async def start_all(slots: Iterable[WorkerSlot[W, K]]) -> None:
    """Start the workers of all slots; raises the first error, once all have started or failed."""
    for outcome in await asyncio.gather(*(slot.worker() for slot in slots), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
