"""
An engine without a model, for tests of whatever hosts a `RolloutActor`.

    engine = FakeEngine()                  engine = FakeEngine(num_tokens=4)
    await engine.started(2)                every request is answered at once, with 4 tokens
    engine.write(3)
    engine.finish()                        the test says what is written, and when

It keeps the promises of `asyncrl.rollout.engine.Engine` that an actor relies on: nothing is written while it is paused,
a token carries the version that wrote it, and cancelling a request frees its place.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from asyncrl.errors import EngineError
from asyncrl.messages import FinishReason, Prompt, Span
from asyncrl.rollout.engine import Completion, Request
from asyncrl.weights.contents.layout import TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

LOGPROB = -0.5
"""Of every token it writes."""


class Generation:
    """One request in hand."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.done: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._spans: list[Span] = list(request.resume_from.spans) if request.resume_from else []

    @property
    def num_tokens(self) -> int:
        """Written so far."""
        return self._spans[-1].end if self._spans else 0

    def write(self, num_tokens: int, policy_version: int) -> None:
        """So many tokens more."""
        start, end = self.num_tokens, self.num_tokens + num_tokens
        if self._spans and self._spans[-1].policy_version == policy_version:
            start = self._spans.pop().start
        self._spans.append(Span(policy_version, start, end))

    def completion(self, finish_reason: FinishReason) -> Completion:
        """What was written."""
        return Completion(
            completion_ids=list(range(self.num_tokens)),
            behavior_logprobs=[LOGPROB] * self.num_tokens,
            spans=list(self._spans),
            finish_reason=finish_reason,
            generate_s=0.0,
        )


class FakeEngine:
    """
    An `Engine` that writes what it is told to.

    Args:
        num_tokens: Answer every request at once with so many tokens; None waits for `write` and `finish`.
        policy_version: Whose weights it starts with.
    """

    def __init__(self, *, num_tokens: int | None = None, policy_version: int = 0) -> None:
        self._num_tokens = num_tokens
        self._started = asyncio.Condition()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.policy_version = policy_version
        self.running: list[Generation] = []
        """In the order they started."""
        self.requests: list[Request] = []
        """Every one it ever got."""
        self.calls: list[str] = []
        """``pause``, ``swap 3``, ``resume``, ``aclose``, in order."""
        self.weights: Mapping[str, Tensor] = {}
        """Of the last swap."""

    # ── what an actor calls ─────────────────────────────────────────────────────────────────

    def encode(self, prompt: Prompt) -> list[int]:
        """One token a word: its length."""
        words = prompt.text or " ".join(turn["content"] for turn in prompt.chat)
        return [len(word) for word in words.split()]

    def decode(self, token_ids: list[int]) -> str:
        """The ids."""
        return " ".join(map(str, token_ids))

    def specs(self) -> list[TensorSpec]:
        """It has no parameters."""
        return []

    async def generate(self, request: Request) -> Completion:
        """As `Engine.generate`."""
        generation = Generation(request)
        self.requests.append(request)
        self.running.append(generation)
        async with self._started:
            self._started.notify_all()
        try:
            if self._num_tokens is not None:
                await self._may_write.wait()
                generation.write(self._num_tokens, self.policy_version)
                return generation.completion("stop")
            return await generation.done
        finally:
            if generation in self.running:
                self.running.remove(generation)

    def written(self, request: Request) -> Completion | None:
        """As `Engine.written`."""
        generation = next((generation for generation in self.running if generation.request is request), None)
        return generation.completion("unfinished") if generation and generation.num_tokens else None

    async def pause(self) -> None:
        """As `Engine.pause`."""
        self.calls.append("pause")
        self._may_write.clear()

    async def swap(self, policy_version: int, weights: "Mapping[str, Tensor]") -> None:
        """As `Engine.swap`."""
        if self._may_write.is_set():
            raise EngineError("swap needs a paused engine: call pause() first", retryable=False)
        self.calls.append(f"swap {policy_version}")
        self.policy_version = policy_version
        self.weights = weights

    async def resume(self) -> None:
        """As `Engine.resume`."""
        self.calls.append("resume")
        self._may_write.set()

    async def aclose(self) -> None:
        """As `Engine.aclose`."""
        self.calls.append("aclose")
        for generation in self.running:
            if not generation.done.done():
                generation.done.set_exception(EngineError("the engine was closed"))

    # ── what a test calls ───────────────────────────────────────────────────────────────────

    async def started(self, count: int) -> None:
        """Wait until ``count`` requests are in hand."""
        async with self._started:
            await self._started.wait_for(lambda: len(self.running) >= count)

    def write(self, num_tokens: int) -> None:
        """
        Every request in hand gets so many tokens more, written by the version there is.

        Raises:
            EngineError: It is paused.
        """
        if not self._may_write.is_set():
            raise EngineError("a paused engine writes nothing")
        for generation in self.running:
            generation.write(num_tokens, self.policy_version)

    def finish(self, index: int = 0, finish_reason: FinishReason = "stop") -> None:
        """The request at ``index`` of `running` ends with what was written."""
        generation = self.running.pop(index)
        generation.done.set_result(generation.completion(finish_reason))

    def index_of(self, request: Request) -> int:
        """Where in `running` it is."""
        return next(i for i, generation in enumerate(self.running) if generation.request is request)

    def fail(self, error: EngineError, index: int = 0) -> None:
        """The request at ``index`` of `running` fails."""
        self.running.pop(index).done.set_exception(error)
