"""
An engine without a model, for tests of a host that runs a `RolloutActor`.

    engine = FakeEngine()                  engine = FakeEngine(num_tokens=4)
    await engine.started(2)                answers every request at once, with 4 tokens
    engine.write(3)
    engine.finish()                        the test decides which tokens are written, and when

As `asyncrl.engine.Engine` demands, nothing is written while it is paused, every token has the version that
wrote it, and cancelling a request removes it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncrl.config.sections.sampling import ToolParser
from asyncrl.engine import IMAGE, ChatMessage, Completion, PolicyTurn, Request
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import IMAGE_MARK, Prompt, Span
from asyncrl.messages.words import FinishReason
from asyncrl.weights.contents.layout import TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

LOGPROB = -0.5
"""Log-probability of every token."""
IMAGE_ID, IMAGE_TOKENS, IMAGE_GRID = 0, 4, (1, 4, 4)
"""Token of a picture, its tokens in a prompt, and the patches that they stand for, whatever its size."""


class RunningRequest:
    """A request that a `FakeEngine` has not finished."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.done: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._spans: list[Span] = list(request.resume_from.spans) if request.resume_from else []

    @property
    def num_tokens(self) -> int:
        return self._spans[-1].end if self._spans else 0

    def write(self, num_tokens: int, policy_version: int) -> None:
        start, end = self.num_tokens, self.num_tokens + num_tokens
        if self._spans and self._spans[-1].policy_version == policy_version:
            start = self._spans.pop().start
        self._spans.append(Span(policy_version, start, end))

    def completion(self, finish_reason: FinishReason) -> Completion:
        """Completion so far: ids 0, 1, 2 …, each with log-prob `LOGPROB` and a sampling mask of itself alone."""
        return Completion(
            completion_ids=list(range(self.num_tokens)),
            behavior_logprobs=[LOGPROB] * self.num_tokens,
            spans=list(self._spans),
            finish_reason=finish_reason,
            generate_s=self.request.resume_from.generate_s if self.request.resume_from else 0.0,
            mask_counts=[1] * self.num_tokens if self.request.sampling.replay_mask else [],
            mask_ids=list(range(self.num_tokens)) if self.request.sampling.replay_mask else [],
            grids=[IMAGE_GRID] * len(self.request.images),
        )


def _content_ids(content: str | list[dict[str, Any]]) -> list[int]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    ids: list[int] = []
    for part in parts:
        ids += [IMAGE_ID] * IMAGE_TOKENS if part["type"] == IMAGE else [len(word) for word in part["text"].split()]
    return ids


class FakeBoundary:
    """
    A `TurnBoundary` without a chat template: one token per word, its length, and `IMAGE_TOKENS` times `IMAGE_ID` per
    picture; the policy calls no tools.
    """

    def after(self, messages: Sequence[ChatMessage], last_ids: Sequence[int]) -> list[int]:
        return [token for message in messages for token in _content_ids(message["content"])]

    def opening(self, messages: Sequence[ChatMessage], tools: str = "") -> list[int]:
        return self.after(messages, [])

    def quoted(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        return list(messages)

    def retold(self, messages: Sequence[ChatMessage], read_ids: Sequence[int], tools: str = "") -> list[int] | None:
        return None

    def message(self, token_ids: Sequence[int]) -> ChatMessage:
        return {"role": "assistant", "content": self.text(token_ids)}

    def said(self, token_ids: Sequence[int], finish_reason: FinishReason, tools: str = "") -> PolicyTurn:
        spoken = self.text(token_ids)
        return PolicyTurn(text=spoken, content=spoken, finish_reason=finish_reason)

    def text(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))


class FakeEngine:
    """
    An `Engine` controlled by a test.

    Args:
        num_tokens: Answer every request at once with this many tokens; None waits for `write` and `finish`.
        policy_version: Version of the first tokens, until a swap.
    """

    def __init__(self, *, num_tokens: int | None = None, policy_version: int = 0) -> None:
        self._num_tokens = num_tokens
        self._started = asyncio.Condition()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.policy_version = policy_version
        self.running: list[RunningRequest] = []
        self.requests: list[Request] = []
        """All requests, finished ones included."""
        self.calls: list[str] = []
        """``pause``, ``swap 3``, ``resume``, ``sleep``, ``wake``, ``aclose``, in order."""
        self.weights: Mapping[str, Tensor] = {}
        """Argument of the last swap."""

    # ── called by an actor ──────────────────────────────────────────────────────────────────

    def encode(self, prompt: Prompt) -> list[int]:
        """One token per word, its length, and `IMAGE_TOKENS` times `IMAGE_ID` per picture."""
        text = prompt.text or " ".join(turn["content"] for turn in prompt.chat)
        if not prompt.images:
            return [len(word) for word in text.split()]
        before, *others = ([len(word) for word in part.split()] for part in text.split(IMAGE_MARK))
        return before + [token for words in others for token in [IMAGE_ID] * IMAGE_TOKENS + words]

    def boundary(self, *, is_chat: bool = True, tools: str = "", tool_parser: ToolParser = "auto") -> "FakeBoundary":
        return FakeBoundary()

    def decode(self, token_ids: list[int]) -> str:
        return " ".join(map(str, token_ids))

    def specs(self) -> list[TensorSpec]:
        return []

    async def generate(self, request: Request) -> Completion:
        if (num_tokens := request.prompt_ids.count(IMAGE_ID)) != IMAGE_TOKENS * len(request.images):
            raise EngineError(f"{len(request.images)} pictures came with a prompt of {num_tokens} tokens for pictures")
        running = RunningRequest(request)
        self.requests.append(request)
        self.running.append(running)
        async with self._started:
            self._started.notify_all()
        try:
            if self._num_tokens is not None:
                await self._may_write.wait()
                running.write(self._num_tokens, self.policy_version)
                return running.completion("stop")
            return await running.done
        finally:
            if running in self.running:
                self.running.remove(running)

    def written(self, request: Request) -> Completion | None:
        running = next((running for running in self.running if running.request is request), None)
        return running.completion("unfinished") if running and running.num_tokens else None

    async def pause(self) -> None:
        self.calls.append("pause")
        self._may_write.clear()

    async def swap(self, policy_version: int, weights: "Mapping[str, Tensor]") -> None:
        if self._may_write.is_set():
            raise EngineError("swap needs a paused engine: call pause() first", retryable=False)
        self.calls.append(f"swap {policy_version}")
        self.policy_version = policy_version
        self.weights = weights

    async def resume(self) -> None:
        self.calls.append("resume")
        self._may_write.set()

    async def sleep(self) -> int:
        if self._may_write.is_set() or self.running:
            raise EngineError("sleep needs a paused engine without requests: call pause() first", retryable=False)
        self.calls.append("sleep")
        return 1000

    async def wake(self) -> None:
        self.calls.append("wake")

    async def aclose(self) -> None:
        self.calls.append("aclose")
        for running in self.running:
            if not running.done.done():
                running.done.set_exception(EngineError("the engine was closed"))

    # ── called by a test ────────────────────────────────────────────────────────────────────

    async def started(self, count: int) -> None:
        """Wait until ``count`` requests are running."""
        async with self._started:
            await self._started.wait_for(lambda: len(self.running) >= count)

    def write(self, num_tokens: int) -> None:
        """Append tokens of the current version to every running request; `EngineError` while paused."""
        if not self._may_write.is_set():
            raise EngineError("a paused engine writes nothing")
        for running in self.running:
            running.write(num_tokens, self.policy_version)

    def finish(self, index: int = 0, finish_reason: FinishReason = "stop") -> None:
        """Finish the request ``running[index]`` with its tokens so far."""
        running = self.running.pop(index)
        running.done.set_result(running.completion(finish_reason))

    def index_of(self, request: Request) -> int:
        """Index of a request in `running`."""
        return next(i for i, running in enumerate(self.running) if running.request is request)

    def fail(self, error: EngineError, index: int = 0) -> None:
        """Fail the request ``running[index]``."""
        self.running.pop(index).done.set_exception(error)
