"""
An event loop whose clock jumps to the next timer when nothing is left to do, and processes that live on it.

    ready ─▶ run ─▶ nothing ready: now = when the next timer is due ─▶ ready ...

One thread, no selector, no disk: two runs with the same seed do the same things in the same order. Where an object lies
in memory differs from one interpreter to the next, and must not decide any order: tasks have numbers for hashes. What a
thread pool would do is done on the loop, a little later, one thing after the other.
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
"""In one schedule: two orders of magnitude more than any needs."""

PROCESS: "ContextVar[Process]" = ContextVar("PROCESS")
"""Whose code is running."""


class Stuck(Exception):
    """The loop turns for ever without time going on."""


class NumberedTask(asyncio.Task[Any]):
    """Sets of tasks are walked in the order of their numbers, not of their addresses."""

    _numbers = count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class Process:
    """
    What runs under one name until it ends or is killed.

    A killed process may run to the end of its coroutines, but nothing it does then reaches a wire or a disk. A frozen
    one does nothing at all, and everything late when it is thawed.
    """

    def __init__(self, loop: "VirtualLoop", name: str) -> None:
        self.name = name
        self.is_alive = True
        self.parked: deque[asyncio.Handle] | None = None
        """What it would have done since it was frozen; None while it runs."""
        self.skew_s = 0.0
        """How far its clock has jumped."""
        self.task: asyncio.Task[None]
        self.context: Context
        self._loop = loop

    def start(self, main: Coroutine[Any, Any, None]) -> None:
        """Begin."""
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self.task = self._loop.create_task(main, context=self.context)

    def clock(self) -> float:
        """Seconds, as this process sees them."""
        return self._loop.time() + self.skew_s

    def kill(self) -> None:
        """As SIGKILL."""
        self.is_alive = False
        self.thaw()
        self.task.cancel()

    def freeze(self) -> None:
        """As SIGSTOP."""
        if self.parked is None:
            self.parked = deque()

    def thaw(self) -> None:
        """As SIGCONT."""
        if self.parked is not None:
            parked, self.parked = self.parked, None
            self._loop.run_soon(parked)


class VirtualLoop(asyncio.BaseEventLoop):
    """
    See above.

    Args:
        dice: How long work in threads takes.
    """

    def __init__(self, dice: Random) -> None:
        super().__init__()
        self._dice = dice
        self._now_s = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        """A heap. Of timers that are due together, the one that was set first comes first."""
        self._num_timers = 0
        self._free_s: dict[object, float] = {}
        """When each thread pool is done with what it has."""
        self._tasks: list[asyncio.Task[Any]] = []
        self.num_callbacks = 0
        self.set_task_factory(self._make_task)

    @property
    def unfinished(self) -> list[asyncio.Task[Any]]:
        """Tasks that have not ended, in the order they were made."""
        return [task for task in self._tasks if not task.done()]

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        """As ever, with less ado: half of the time of a schedule goes by in here."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As `call_at`."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        """As ever."""
        timer = Timer(when, callback, args, self, context)
        self._num_timers += 1
        heapq.heappush(self._timers, (when, self._num_timers, timer))
        return timer

    def run_soon(self, handles: deque[asyncio.Handle]) -> None:
        """Behind all that is ready."""
        self._ready.extend(handles)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, function: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        """Call ``function`` after a while, when what was given to this executor before is done."""
        future = self.create_future()
        due_s = max(self._now_s, self._free_s.get(executor, 0.0)) + self._dice.expovariate(1 / 0.002)
        self._free_s[executor] = due_s
        self.call_at(due_s, _call, future, function, arguments)
        return future

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        """There is one thread."""
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
            process = handle._context.get(PROCESS)
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
    """What a thread does with one piece of work, unless its process is dead."""
    process = PROCESS.get(None)
    if future.done() or (process is not None and not process.is_alive):
        return
    try:
        result = function(*arguments)
    except Exception as error:  # noqa: BLE001  as a thread pool does
        future.set_exception(error)
    else:
        future.set_result(result)
