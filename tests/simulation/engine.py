"""An engine whose tokens depend on the seed of the request alone, not on the rollout, the version or the time."""

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from asyncrl.engine import Completion, Request
from asyncrl.errors import EngineError, PromptTooLong
from asyncrl.messages.trajectory import Prompt, Span
from asyncrl.messages.words import FinishReason
from tests.simulation.episodes import WRITTEN
from tests.simulation.plan import ROWS, Plan, tokens_of


class SimEngine:
    """
    Writes one token at a time, after random delays.

    Args:
        dice: Decides delays and failures.
        swapped: Called with each new version and its weights.
    """

    def __init__(self, plan: Plan, dice: Random, swapped: Callable[[int, Any], None], node: str = "") -> None:
        self._plan = plan
        self._dice = dice
        self._slowness = plan.pace.slow_rollout if node == "rollout-1" else 1.0
        self._swapped = swapped
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._policy_version = -1
        self.is_awake = True
        self.turn_ended: Callable[[], None] = lambda: None
        """Called after each `WRITTEN` tokens of a request."""
        self._running: dict[int, tuple[Request, list[int]]] = {}
        """Running requests by ``id``, with the policy version of each token so far."""

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's row, as its only token."""
        if int(prompt.answer) < self._plan.pace.refused * ROWS:
            raise PromptTooLong("the prompt has 900 tokens, at most 64 are allowed")
        return [int(prompt.answer)]

    def decode(self, token_ids: list[int]) -> str:
        return str(token_ids[0])

    async def generate(self, request: Request) -> Completion:
        dice, plan = self._dice, self._plan
        versions = [span.policy_version for span in spans_before(request) for _ in range(span.start, span.end)]
        self._running[id(request)] = request, versions
        try:
            while len(versions) < len(whole(request)):
                await asyncio.sleep(dice.expovariate(1 / plan.token_s) * self._slowness * self._tail(request))
                await self._may_write.wait()
                assert self.is_awake, "the engine decodes in its sleep"
                versions.append(self._policy_version)
                if len(versions) % WRITTEN == 0:
                    self.turn_ended()
        finally:
            del self._running[id(request)]
        if dice.random() < plan.failure:
            raise EngineError("out of memory", retryable=dice.random() < 0.9)
        return completion(request, versions, "stop")

    def _tail(self, request: Request) -> float:
        return self._plan.pace.tail if (request.seed or 0) % 16 == 0 else 1.0

    def written(self, request: Request) -> Completion | None:
        _, versions = self._running.get(id(request), (request, []))
        return completion(request, versions, "unfinished") if versions else None

    async def pause(self) -> None:
        self._may_write.clear()

    async def swap(self, policy_version: int, weights: Mapping[str, Any]) -> None:
        assert self.is_awake, "the engine swaps in its sleep"
        self._swapped(policy_version, weights["trained"])
        await asyncio.sleep(self._dice.expovariate(1 / 0.005))
        self._policy_version = policy_version

    async def resume(self) -> None:
        self._may_write.set()

    async def sleep(self) -> int:
        assert not self._may_write.is_set(), "not paused"
        assert not self._running, "requests are in the engine"
        await asyncio.sleep(self._dice.expovariate(1 / 0.02))
        self.is_awake = False
        return 1

    async def wake(self) -> None:
        self.is_awake = True
        await asyncio.sleep(self._dice.expovariate(1 / 0.02))


def whole(request: Request) -> list[int]:
    """All tokens of the completion."""
    assert request.seed is not None, "no run file here switches seeds off"
    return tokens_of(request.seed)


def spans_before(request: Request) -> list[Span]:
    return request.resume_from.spans if request.resume_from else []


def completion(request: Request, versions: list[int], finish_reason: FinishReason) -> Completion:
    """Completion of the tokens so far, given the policy version of each."""
    starts = [i for i, version in enumerate(versions) if i == 0 or versions[i - 1] != version]
    ends = [*starts[1:], len(versions)]
    return Completion(
        completion_ids=whole(request)[: len(versions)],
        behavior_logprobs=[-0.5] * len(versions),
        spans=[Span(versions[start], start, end) for start, end in zip(starts, ends, strict=True)],
        finish_reason=finish_reason,
        generate_s=0.0,
    )
