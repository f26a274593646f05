"""
Requests that one engine samples for rollouts, while requests of the host's users go first.

    complete ─▶ engine.generate ─▶ completion
        ▲            │ make_way: users' requests begin
        └─ users idle ── outside the engine, with the tokens so far
"""

import asyncio
import time
from collections.abc import Callable

from msgspec import Struct, structs

from asyncrl.engine import Completion, Engine, Request
from asyncrl.errors import EngineError
from asyncrl.messages.words import Activity
from asyncrl.rollout.results import check_extends
from asyncrl.rollout.user_requests import UserRequests
from asyncrl.wire.occupancy import Occupancy

# ── decode steps ──────────────────────────────────────────────────────────────────────────────
# The number of decode steps that an engine takes, from when its completions begin and end.
#
#   running        ▁▂▂▂▂▃▃▁▁      a completion of k tokens that runs from t0 to t1 takes k of the engine's steps there;
#   1 / running    █▄▄▄▄▃▃██      of each step it is one of `running`, so it counts as k times the mean of 1 / running
#
# Summed over completions that is the number of steps: with the tokens and the seconds of sampling it tells how the
# time of a step grows with the completions in it, which no engine has to report.


class DecodeSteps:
    """Counts the steps of one engine; ``clock`` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._running = 0
        self._integral_s = 0.0
        """Integral over time of 1 / running, up to `_until_s`."""
        self._until_s = clock()
        self.number = 0.0
        """Steps so far, counted when a completion ends."""

    def begin(self) -> tuple[float, float]:
        """Note that a completion begins; the return value is for `end`."""
        self._advance()
        self._running += 1
        return self._until_s, self._integral_s

    def end(self, began: tuple[float, float], num_tokens: int) -> None:
        """Note that a completion ends, with ``num_tokens`` sampled since `begin`; 0 if nobody knows."""
        self._advance()
        self._running -= 1
        began_s, integral_s = began
        if (seconds := self._until_s - began_s) > 0:
            self.number += num_tokens * (self._integral_s - integral_s) / seconds

    def _advance(self) -> None:
        now_s = self._clock()
        if self._running:
            self._integral_s += (now_s - self._until_s) / self._running
        self._until_s = now_s


# ── engine calls ──────────────────────────────────────────────────────────────────────────────


def num_resumed(request: Request) -> int:
    """Tokens of its completion that a request begins with."""
    return len(request.resume_from.completion_ids) if request.resume_from else 0


class EngineCall(Struct, eq=False):
    """One request, and the task that waits for it."""

    request: Request
    """The request that the engine has, or gets next: with the tokens so far."""
    task: asyncio.Task[object]
    is_in_engine: bool = False
    is_interrupted: bool = False
    """True once the request was taken out of the engine for users' requests."""


class EngineCalls:
    """
    All requests of rollouts at one engine, which is borrowed.

    Args:
        end_with: Called with an error after which the engine cannot be used.
        changed: Called when a request enters or leaves the engine.
        clock: Gives monotonic seconds.
    """

    def __init__(
        self,
        engine: Engine,
        users: UserRequests,
        occupancy: Occupancy[Activity],
        *,
        end_with: Callable[[BaseException], None],
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._users = users
        self._occupancy = occupancy
        self._end_with = end_with
        self._changed = changed
        self._calls: dict[int, EngineCall] = {}
        """Calls by the identity of the request as the caller knows it."""
        self.num_tokens = 0
        """Tokens sampled so far, without those that were resumed from."""
        self.decode_steps = DecodeSteps(clock)

    @property
    def is_outside(self) -> bool:
        """True if no request is in the engine."""
        return not any(call.is_in_engine for call in self._calls.values())

    @property
    def num_computed(self) -> int:
        """Work of the engine so far: the tokens that it has computed, or written if it tells no more."""
        if isinstance(computed := getattr(self._engine, "num_computed", None), int):
            return computed
        running = [written for call in self._calls.values() if (written := self._written_by(call))]
        return self.num_tokens + sum(len(written.completion_ids) for written in running)

    async def complete(self, request: Request) -> Completion:
        """Sample one completion, in the caller's task. Raises `EngineError`."""
        task = asyncio.current_task()
        assert task is not None, "called in a coroutine"
        call = self._calls[id(request)] = EngineCall(request, task)
        try:
            completion = await self._complete(call)
        finally:
            del self._calls[id(request)]
        if completion.finish_reason == "unfinished":  # It would be kept to be continued, which nobody does.
            raise EngineError("the engine ended a completion as unfinished")
        if call.request.resume_from:
            check_extends(completion, call.request.resume_from)
        self.num_tokens += len(completion.completion_ids) - num_resumed(request)
        return completion

    def written(self, request: Request) -> Completion | None:
        """Tokens of a request so far, in the engine or outside; None if there are none, or it does not run."""
        return self._written_by(call) if (call := self._calls.get(id(request))) else None

    def _written_by(self, call: EngineCall) -> Completion | None:
        return self._engine.written(call.request) or call.request.resume_from

    def make_way(self) -> None:
        """
        Take every request out of the engine with its tokens so far; it continues when the users are idle.

        One without new tokens may have ended just before: it is taken out in the next turn of the loop, if it has not.
        """
        self._interrupt(only_with_tokens=True)
        asyncio.get_running_loop().call_soon(self._interrupt)

    async def _complete(self, call: EngineCall) -> Completion:
        while True:
            await self._users.until_idle()
            call.is_in_engine, call.is_interrupted = True, False
            self._occupancy.begin("sampling")
            began, num_tokens = self.decode_steps.begin(), 0
            try:
                completion = await self._engine.generate(call.request)
                num_tokens = len(completion.completion_ids) - num_resumed(call.request)
                return completion
            except asyncio.CancelledError:
                # Both may have happened: the interruption, and the end of the task.
                if not call.is_interrupted or call.task.uncancel():
                    raise
            finally:
                self._occupancy.end("sampling")
                self.decode_steps.end(began, max(num_tokens, 0))
                call.is_in_engine = False
                self._changed()

    def _interrupt(self, *, only_with_tokens: bool = False) -> None:
        for call in list(self._calls.values()):
            if not call.is_in_engine or call.is_interrupted or self._users.is_idle:
                continue
            try:
                written = self._engine.written(call.request)
            except Exception as error:  # noqa: BLE001  a host's engine may raise anything, here amid a user's request
                self._end_with(error)
                return
            if written and written is not call.request.resume_from:
                call.request = structs.replace(call.request, resume_from=written)
            elif only_with_tokens:
                continue
            call.is_interrupted = True
            call.task.cancel()
