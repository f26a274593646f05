"""
An event loop whose clock jumps to the next timer when no callback is ready, and processes that run on it.

    ready ─▶ run ─▶ nothing ready: now = time of the next timer ─▶ ready ...

One thread, no selector, no disk: two runs with the same seed do the same things in the same order. Memory addresses
differ between interpreters and must not decide any order, so tasks are hashed by number. Work of thread pools is done
on the loop, after a random delay, one item after the other.
"""

import asyncio
import heapq
from asyncio import TimerHandle as Timer
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from itertools import count
from random import Random
from typing import Any

MAX_CALLBACKS = 2_000_000
"""Limit for one schedule: two orders of magnitude more than any needs."""

PROCESS: "ContextVar[Process]" = ContextVar("PROCESS")
"""The process whose code is running."""


class Stuck(Exception):
    """The loop cannot make progress: no callback is left, or too many ran."""


class NumberedTask(asyncio.Task[Any]):
    """A task with its number as hash, so that sets of tasks have the same order in every run."""

    _numbers = count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class Process:
    """
    A process, until it ends or is killed.

    A killed process may run to the end of its coroutines, but has no effect on the network or the disk. A frozen
    process does nothing, and catches up when it is thawed.
    """

    def __init__(self, loop: "VirtualLoop", name: str) -> None:
        self.name = name
        self.is_alive = True
        self.parked: deque[asyncio.Handle] | None = None
        """Callbacks held back while frozen; None while the process runs."""
        self.skew_s = 0.0
        """Seconds that its clock is ahead."""
        self.task: asyncio.Task[None]
        self.context: Context
        self._loop = loop

    def start(self, main: Coroutine[Any, Any, None]) -> None:
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self.task = self._loop.create_task(main, context=self.context)

    def clock(self) -> float:
        """The process's monotonic clock, seconds."""
        return self._loop.time() + self.skew_s

    def kill(self) -> None:
        self.is_alive = False
        self.thaw()
        self.task.cancel()

    def freeze(self) -> None:
        if self.parked is None:
            self.parked = deque()

    def thaw(self) -> None:
        if self.parked is not None:
            parked, self.parked = self.parked, None
            self._loop.run_soon(parked)


class VirtualLoop(asyncio.BaseEventLoop):
    """
    The event loop.

    Args:
        dice: Decides the delays of work in threads.
    """

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self, dice: Random) -> None:
        super().__init__()
        self._dice = dice
        self._now_s = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        """Heap; timers due at the same time run in the order they were set."""
        self._num_timers = 0
        self._free_s: dict[object, float] = {}
        """Time at which each thread pool becomes free."""
        self._tasks: list[asyncio.Task[Any]] = []
        self.num_callbacks = 0
        self.work_s: Callable[[Callable[..., Any]], float] = lambda _function: 0.0
        """Seconds that a function takes in its thread, besides a random delay."""
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]

    @property
    def unfinished(self) -> list[asyncio.Task[Any]]:
        """Unfinished tasks, in the order of creation."""
        return [task for task in self._tasks if not task.done()]

    def time(self) -> float:
        return self._now_s

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Override for speed: half of the time of a schedule is spent here."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = Timer(when, callback, args, self, context)
        self._num_timers += 1
        heapq.heappush(self._timers, (when, self._num_timers, timer))
        return timer

    def run_soon(self, handles: deque[asyncio.Handle]) -> None:
        """Append to the ready callbacks."""
        self._ready.extend(handles)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, function: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        """Call ``function`` after a random delay, once earlier work of this executor is done."""
        future = self.create_future()
        work_s = self._dice.expovariate(1 / 0.002) + self.work_s(function)
        due_s = max(self._now_s, self._free_s.get(executor, 0.0)) + work_s
        self._free_s[executor] = due_s
        self.call_at(due_s, _call, future, function, arguments)
        return future

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """The same as `call_soon`: there is one thread."""
        return self.call_soon(callback, *args, context=context)

    def _run_once(self) -> None:
        timers, ready = self._timers, self._ready
        if not ready and timers:
            self._now_s = max(self._now_s, timers[0][0])
        while timers and timers[0][0] <= self._now_s:
            ready.append(heapq.heappop(timers)[2])
        if not (num_ready := len(ready)) and not self._stopping:
            raise Stuck("nothing is left to do, ever")
        self.num_callbacks += num_ready
        if self.num_callbacks > MAX_CALLBACKS:
            raise Stuck(f"{MAX_CALLBACKS} callbacks, and no end")
        for _ in range(num_ready):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if process is not None and process.parked is not None:
                process.parked.append(handle)
            else:
                handle._run()

    def _make_task(self, _loop: object, coroutine: Coroutine[Any, Any, Any], **options: Any) -> NumberedTask:
        task = NumberedTask(coroutine, loop=self, **options)
        self._tasks.append(task)
        return task

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: object) -> None:
        pass


def _call(future: asyncio.Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Do one item of work as a thread would, unless the process is dead."""
    process = PROCESS.get(None)
    if process is not None and not process.is_alive:
        future.cancel()  # Its coroutines may wait for the end of their threads.
    if future.done():
        return
    try:
        result = function(*arguments)
    except Exception as error:  # noqa: BLE001  as a thread pool does
        future.set_exception(error)
    else:
        future.set_result(result)
