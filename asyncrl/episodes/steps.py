"""
The loop of an episode whose environment answers turn by turn.

    reset ─▶ say ─▶ step ─▶ say ─▶ step ─▶ ... ─▶ done                     observation between any two turns
    reset ─▶ recorded ─▶ step ─▶ recorded ─▶ step ─▶ say ─▶ ...            replay of an episode that was interrupted
    restore ───────────────────────▶ recorded ─▶ step ─▶ say ─▶ ...        the same from a snapshot

A replay is the same loop: its first turns come from the record. Each observation must then be token by token what the
policy read when it was recorded; otherwise the environment is not where the record ends, and `EnvironmentDiverged` is
raised.
"""

import time
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.engine import ChatMessage, TurnBoundary
from asyncrl.episodes.conversation import MALFORMED, Conversation, EpisodeOver
from asyncrl.episodes.environment import Answer, EnvironmentEpisode, Resume, Score, TaskInput
from asyncrl.episodes.record import EpisodeState, ResumedEpisode
from asyncrl.errors import EnvironmentFailed
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT
from asyncrl.messages.verdict_limits import MAX_METRICS
from asyncrl.messages.words import FinishReason


class EnvironmentDiverged(Exception):
    """The environment answered otherwise than when the turns were recorded."""


class EpisodeSteps:
    """
    Plays one episode: turn after turn of the policy, each answered by the environment.

    Args:
        conversation: With the record of the turns that a snapshot contains, and otherwise empty.
        tools: JSON list of the tools that the prompt shows.
        resumed: Turns of an earlier attempt; None begins anew.
    """

    def __init__(
        self,
        conversation: Conversation,
        environment: EnvironmentEpisode,
        task: TaskInput,
        *,
        resume: Resume,
        tools: str = "",
        history: Literal["as_sampled", "as_template"] = "as_sampled",
        observed: "ObservationBudget",
        resumed: ResumedEpisode | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conversation = conversation
        self._environment = environment
        self._task = task
        self._resume = resume
        self._tools = tools
        self._observed = observed
        self._chat: list[ChatMessage] | None = None
        if history == "as_template":
            self._chat = conversation.boundary.quoted(task.messages)
        """The conversation as messages, if the chat template is to render it again."""
        self._state = resumed.state if resumed else EpisodeState(num_finished=0)
        self._recorded = list(resumed.finished[self._state.num_answered :]) if resumed else []
        self._begun = list(resumed.begun) if resumed else []
        conversation.reserve([*self._recorded, *self._begun])
        for turn in conversation.record.turns:  # those that a snapshot contains
            ended = turn.completion
            conversation.note_calls(conversation.boundary.said(ended.completion_ids, ended.finish_reason))
        self._clock = clock

    @property
    def state(self) -> EpisodeState:
        """State to be stored with the turns so far."""
        return replace(self._state, num_finished=len(self._conversation.record.turns))

    @property
    def is_replaying(self) -> bool:
        """True while turns of the earlier attempt are not in the record yet."""
        return bool(self._recorded or self._begun)

    async def score(self) -> Score:
        """Score of the environment; with tools, and with malformed calls as far as there is room for their metrics."""
        score = await self._environment.score()
        metrics = {name: float(self._conversation.malformed[name]) for name in MALFORMED} | score.metrics
        return replace(score, metrics=metrics) if self._tools and len(metrics) <= MAX_METRICS else score

    async def play(self) -> FinishReason:
        """
        Play to the end, and return why the episode ended.

        Raises:
            EnvironmentFailed: The environment failed, or its first observation leaves no room for a turn.
            EngineError: A turn could not be sampled.
            Diverged: The turns of the earlier attempt do not fit its answers.
        """
        answer = await self._begin()
        if answer.done:
            raise EnvironmentFailed("reset says that the episode is done, before the first turn", retryable=False)
        parent, context = self._first(answer)
        while True:
            try:
                place = await self._turn(parent, context)
            except EpisodeOver as over:
                if self._conversation.record.turns:
                    return "length"
                raise EnvironmentFailed(
                    f"the first observation has {len(context)} tokens and leaves no room for a turn: {over}",
                    retryable=False,
                ) from over
            answer = await self._step(place)
            if answer.done:
                return "stop"
            parent, context = self._after(place, answer)

    async def _begin(self) -> Answer:
        if self._state.answer is None:
            return await self._environment.reset(self._task)
        await self._environment.restore(self._task, self._state.snapshot)
        self._chat = self._state.chat
        return self._state.answer

    def _first(self, answer: Answer) -> tuple[int, list[int]]:
        """Place of the first turn: index of the turn it follows, and the ids that the policy reads before it."""
        if self._conversation.record.turns:  # of a snapshot
            return self._after(len(self._conversation.record.turns) - 1, answer)
        if not answer.messages:
            return FROM_PROMPT, []
        return self._opening(answer.messages if answer.restart else [*self._task.messages, *answer.messages])

    def _opening(self, messages: list[ChatMessage]) -> tuple[int, list[int]]:
        """A context that follows nothing. Raises `EnvironmentFailed` if it would lack pictures of the prompt."""
        if self._conversation.images:
            raise EnvironmentFailed(
                "messages of reset, or after a restart, begin a context without the pictures of the prompt; answer "
                "with messages that follow a turn",
                retryable=False,
            )
        if self._chat is not None:
            self._chat = self._conversation.boundary.quoted(messages)
        return FROM_NOTHING, self._conversation.boundary.opening(messages, self._tools)

    async def _turn(self, parent: int, context: list[int]) -> int:
        """Take the turn from the earlier attempt, or sample it. Returns its index."""
        if self._recorded:
            turn = self._recorded.pop(0)
            _check_same((turn.parent, turn.context_ids), (parent, context))
            return self._conversation.record.add(turn)
        if not self._begun:
            return await self._conversation.say(parent, context)
        begun = self._begun.pop(0)
        _check_same((begun.parent, begun.context_ids), (parent, context))
        return await self._conversation.say(parent, context, begun=begun)

    async def _step(self, place: int) -> Answer:
        record = self._conversation.record
        turn = record.turns[place]
        completion = turn.completion
        said = self._conversation.boundary.said(completion.completion_ids, completion.finish_reason)
        self._conversation.note_calls(said)
        began_s = self._clock()
        answer = await self._environment.step(said)
        turn.call_s = self._clock() - began_s
        turn.reward = answer.reward
        if self._resume == "snapshot" and not answer.done:
            snapshot = await self._environment.snapshot()
            self._state = EpisodeState(
                num_finished=place + 1,
                num_answered=place + 1,
                answer=answer,
                snapshot=snapshot,
                chat=None if self._chat is None else list(self._chat),
            )
        return answer

    def _after(self, place: int, answer: Answer) -> tuple[int, list[int]]:
        """
        Place of the turn after ``place``: index of the turn it follows, and the ids of the answer that the policy
        reads.
        """
        if answer.restart:
            return self._opening(answer.messages)
        boundary, record = self._conversation.boundary, self._conversation.record
        written = record.turns[place].completion.completion_ids
        messages = self._observed.fitted(answer.messages, boundary)
        context = boundary.after(messages, written)
        if self._chat is not None:
            self._chat += boundary.message(written), *boundary.quoted(messages)
            retold = boundary.retold(self._chat, [*record.ids_through(place), *context], self._tools)
            if retold is not None:
                return FROM_NOTHING, retold
        return place, context


def _check_same(recorded: tuple[int, Sequence[int]], now: tuple[int, Sequence[int]]) -> None:
    if recorded != now:
        raise EnvironmentDiverged(
            f"its answer has {len(now[1])} tokens after turn {now[0]}, expected the {len(recorded[1])} recorded ones "
            f"after turn {recorded[0]}"
        )


# ── observation budget ────────────────────────────────────────────────────────────────────────
# What the policy reads of a long answer: both ends of it, or one, and how much is left out.
#
#     200,000 characters, at most 2,048 tokens    middle    head [... 191,850 characters left out ...] tail

MOST_CHARS = 32
"""Characters for each token of the budget that are looked at; only runs of one letter have longer tokens."""


class ObservationBudget(Struct, frozen=True):
    """Most tokens of one message, and the part that a longer one loses."""

    max_tokens: int
    cut: Literal["left", "middle", "right"] = "middle"

    def fitted(self, messages: Sequence[ChatMessage], boundary: TurnBoundary) -> list[ChatMessage]:
        """The messages, with the contents of those that are too long cut."""
        return [self._fitted(message, boundary) for message in messages]

    def _fitted(self, message: ChatMessage, boundary: TurnBoundary) -> ChatMessage:
        content = message.get("content") or ""
        if len(content) <= self.max_tokens and len(content.encode()) <= self.max_tokens:
            return message  # No tokenizer needs more tokens than bytes.

        def num_tokens(text: str) -> int:
            return len(boundary.after([{**message, "content": text}], []))

        room = num_tokens("") + self.max_tokens
        keep = min(len(content), self.max_tokens * MOST_CHARS)
        shown = self._without(content, keep)
        while (num := num_tokens(shown)) > room and keep:
            keep = min(keep * self.max_tokens // num, keep * 9 // 10)
            shown = self._without(content, keep)
        return {**message, "content": shown}

    def _without(self, content: str, keep: int) -> str:
        """The content with ``keep`` characters of its own."""
        if keep >= len(content):
            return content
        note = f"[... {len(content) - keep:,} characters left out ...]"
        match self.cut:
            case "left":
                return f"{note}\n{content[len(content) - keep :]}"
            case "right":
                return f"{content[:keep]}\n{note}"
        head = (keep + 1) // 2
        return f"{content[:head]}\n{note}\n{content[len(content) - (keep - head) :]}"
