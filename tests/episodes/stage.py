"""
An episode on a stage: words as tokens, a policy that is a function, and environments that run in this process.

They are as strict as what they stand for: an environment that was closed or lost answers nothing, one method runs at a
time, and the engine notes every request.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from asyncrl.engine import CalledTool, ChatMessage, Completion, PolicyTurn, Request
from asyncrl.episodes.environment import Answer, Description, Resume, Score, TaskInput
from asyncrl.errors import EnvironmentFailed
from asyncrl.messages.session import ContainerCounts
from asyncrl.messages.trajectory import Span
from asyncrl.messages.words import FinishReason

WORDS: list[str] = []
"""Every word that was used; its index is its token."""


def ids(text: str) -> list[int]:
    for word in text.split():
        if word not in WORDS:
            WORDS.append(word)
    return [WORDS.index(word) for word in text.split()]


def words(token_ids: Sequence[int]) -> str:
    return " ".join(WORDS[number] for number in token_ids)


class WordBoundary:
    """Words between turns: every message begins with a mark, and so does the policy's turn."""

    def boundary(self, *, is_chat: bool = True, tools: str = "", tool_parser: str = "auto") -> "WordBoundary":
        return self

    def after(self, messages: Sequence[ChatMessage], last_ids: Sequence[int]) -> list[int]:
        return ids(" ".join([*(f"<{m['role']}> {said_in(m)}" for m in messages), "<policy>"]))

    def opening(self, messages: Sequence[ChatMessage], tools: str = "") -> list[int]:
        return self.after(messages, [])

    def quoted(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        return list(messages)

    def retold(self, messages: Sequence[ChatMessage], read_ids: Sequence[int], tools: str = "") -> list[int] | None:
        """A template that shows the policy's earlier turns without words in brackets."""
        told = ids(" ".join([*(f"<{m['role']}> {_shown(said_in(m))}" for m in messages), "<policy>"]))
        return None if told == list(read_ids) else told

    def message(self, token_ids: Sequence[int]) -> ChatMessage:
        return {"role": "assistant", "content": words(token_ids)}

    def said(self, token_ids: Sequence[int], finish_reason: FinishReason, tools: str = "") -> PolicyTurn:
        text = words(token_ids)
        calls = [CalledTool(name=word[1:], arguments={}) for word in text.split() if word.startswith("!")]
        return PolicyTurn(text=text, content=text, tool_calls=calls, finish_reason=finish_reason)

    def text(self, token_ids: Sequence[int]) -> str:
        return words(token_ids)


def said_in(message: ChatMessage) -> str:
    """Words of a message; a picture is one word."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return " ".join(f"<picture-{part['width']}>" if part["type"] == "image" else part["text"] for part in content)


def _shown(content: str) -> str:
    return " ".join(word for word in content.split() if not word.startswith("("))


Policy = Callable[[str], str]
"""Text of a turn from all the text before it."""


@dataclass
class WordEngine:
    """Samples turns; with ``hold_after`` it waits for ``released`` after that many tokens."""

    policy: Policy
    version: int = 0
    requests: list[Request] = field(default_factory=list)
    hold_after: int | None = None
    hold_from: int = 0
    """Index of the first request that it holds."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    _written: dict[int, Completion] = field(default_factory=dict)

    async def sample(self, request: Request) -> Completion:
        self.requests.append(request)
        begun = request.resume_from.completion_ids if request.resume_from else []
        whole = ids(self.policy(words(request.prompt_ids)))[: request.sampling.max_tokens]
        assert whole[: len(begun)] == begun, "the policy continues what it resumes from"
        finish: FinishReason = "length" if len(whole) == request.sampling.max_tokens else "stop"
        if self.hold_after is not None and len(self.requests) > self.hold_from:
            if self.hold_after > len(begun):
                self._written[id(request)] = self._completion(request, whole[: self.hold_after], "unfinished")
            await self.released.wait()
        return self._completion(request, whole, finish)

    def written(self, request: Request) -> Completion | None:
        return self._written.get(id(request), request.resume_from)

    def _completion(self, request: Request, token_ids: list[int], finish: FinishReason) -> Completion:
        begun = request.resume_from
        spans = list(begun.spans) if begun else []
        start = spans[-1].end if spans else 0
        if start < len(token_ids):
            spans.append(Span(self.version, start, len(token_ids)))
        return Completion(
            completion_ids=token_ids,
            behavior_logprobs=[-0.5] * len(token_ids),
            spans=spans,
            finish_reason=finish,
            generate_s=1.0,
            grids=[(1, 2, 2)] * len(request.images),
        )


class Counter:
    """
    Environment: asks for a number until the sum is right.

    The task's answer is the number of turns to play; every answer tells how many are left.
    """

    def __init__(self) -> None:
        self.left = 0

    def reset(self, task: TaskInput) -> Answer:
        self.left = int(task.answer)
        return Answer()

    def step(self, said: PolicyTurn) -> Answer:
        self.left -= 1
        return Answer(messages=[{"role": "tool", "content": f"left {self.left}"}], reward=1.0, done=self.left == 0)

    def score(self) -> Score:
        return Score(metrics={"correct": float(self.left == 0)})

    def snapshot(self) -> bytes:
        return str(self.left).encode()

    def restore(self, task: TaskInput, state: bytes) -> None:
        self.left = int(state)


@dataclass
class StagedEpisode:
    """One episode of `StagedEnvironments`."""

    owner: "StagedEnvironments"
    name: str
    calls: list[str] = field(default_factory=list)
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.inside: Any = self.owner.make()

    async def reset(self, task: TaskInput) -> Answer:
        return await self._call("reset", task)

    async def step(self, said: PolicyTurn) -> Answer:
        return await self._call("step", said)

    async def score(self) -> Score:
        return await self._call("score")

    async def snapshot(self) -> bytes:
        return await self._call("snapshot")

    async def restore(self, task: TaskInput, state: bytes) -> None:
        await self._call("restore", task, state)

    async def solve(self, task: TaskInput, base_url: str, key: str) -> Score:
        raise NotImplementedError("this stage has no agent programs")

    async def close(self) -> None:
        self.is_closed = True

    async def _call(self, name: str, *arguments: Any) -> Any:
        assert not self.is_closed, f"{name} of a closed episode"
        self.calls.append(name)
        self.owner.num_calls += 1
        if self.owner.hang_at == self.owner.num_calls:
            await asyncio.Event().wait()
        if self.owner.lose_at == self.owner.num_calls:
            raise EnvironmentFailed("its worker was lost", is_lost=True)
        if self.owner.fail_at == self.owner.num_calls:
            raise EnvironmentFailed("it raised ValueError")
        await asyncio.sleep(0)
        return getattr(self.inside, name)(*arguments)


@dataclass
class StagedEnvironments:
    """Environments whose calls are counted; one call may hang, fail, or lose its worker."""

    make: Callable[[], Any] = Counter
    resume: Resume = "replay"
    tools: list[dict[str, Any]] = field(default_factory=list)
    lose_at: int = 0
    fail_at: int = 0
    hang_at: int = 0
    num_calls: int = 0
    opened: list[StagedEpisode] = field(default_factory=list)
    containers: ContainerCounts | None = None

    @property
    def description(self) -> Description:
        return Description(kind="steps", resume=self.resume, tools=self.tools)

    def open(self, name: str) -> StagedEpisode:
        self.opened.append(StagedEpisode(self, name))
        return self.opened[-1]

    async def aclose(self) -> None:
        assert all(episode.is_closed for episode in self.opened)
