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
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.engine import ChatMessage, TurnBoundary
from asyncrl.episodes.conversation import Conversation, EpisodeOver
from asyncrl.episodes.environment import Answer, EnvironmentEpisode, Resume, Score, TaskInput
from asyncrl.episodes.pictures import is_picture
from asyncrl.episodes.record import EpisodeState, ResumedEpisode
from asyncrl.errors import DataError, EnvironmentFailed
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Image
from asyncrl.messages.verdict_limits import MAX_METRICS
from asyncrl.messages.words import FinishReason


class EnvironmentDiverged(Exception):
    """The environment answered otherwise than when the turns were recorded."""


MALFORMED = "malformed_calls"
"""Metric of an episode with tools, unless the environment gives one of that name, or as many as there may be."""


class Following(Struct, frozen=True):
    """Place of a turn, and the context that the policy reads there."""

    parent: int
    """Index of the turn that it follows, `FROM_PROMPT` or `FROM_NOTHING`."""
    context_ids: list[int] = []
    images: list[Image] = []
    """Pictures of the context, in the order of their tokens."""


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
        self._prompt = conversation.pictures.with_prompt(task.messages)
        if history == "as_template":
            self._chat = conversation.boundary.quoted(self._prompt)
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
        """Score of the environment, with the number of calls that could not be read if there are tools."""
        score = await self._environment.score()
        if not self._tools or MALFORMED in score.metrics or len(score.metrics) == MAX_METRICS:
            return score
        return replace(score, metrics={**score.metrics, MALFORMED: float(self._conversation.num_malformed)})

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
        following = self._first(answer)
        while True:
            try:
                place = await self._turn(following)
            except EpisodeOver as over:
                if self._conversation.record.turns:
                    return "length"
                raise EnvironmentFailed(
                    f"the first observation has {len(following.context_ids)} tokens and leaves no room for a turn: "
                    f"{over}",
                    retryable=False,
                ) from over
            answer = await self._step(place)
            if answer.done:
                return "stop"
            following = self._after(place, answer)

    async def _begin(self) -> Answer:
        if self._state.answer is None:
            return await self._taken(await self._environment.reset(self._task))
        await self._environment.restore(self._task, self._state.snapshot)
        self._chat = self._state.chat
        return self._state.answer

    async def _taken(self, answer: Answer) -> Answer:
        """An answer whose pictures are kept."""
        try:
            return await self._conversation.pictures.answer(answer)
        except DataError as error:
            raise EnvironmentFailed(f"the environment's answer cannot be shown: {error}", retryable=False) from error

    def _first(self, answer: Answer) -> Following:
        """Place of the first turn."""
        if self._conversation.record.turns:  # of a snapshot
            return self._after(len(self._conversation.record.turns) - 1, answer)
        if not answer.messages:
            return Following(FROM_PROMPT)
        return self._opening(answer.messages if answer.restart else [*self._prompt, *answer.messages])

    def _opening(self, messages: list[ChatMessage]) -> Following:
        """A context that follows nothing."""
        conversation = self._conversation
        if self._chat is not None:
            self._chat = conversation.boundary.quoted(messages)
        opened = conversation.boundary.opening(messages, self._tools)
        return Following(FROM_NOTHING, opened, conversation.pictures.images(messages))

    async def _turn(self, following: Following) -> int:
        """Take the turn from the earlier attempt, or sample it. Returns its index."""
        if self._recorded:
            turn = self._recorded.pop(0)
            _check_same(Following(turn.parent, turn.context_ids, turn.images), following)
            return self._conversation.record.add(turn)
        begun = self._begun.pop(0) if self._begun else None
        if begun:
            _check_same(Following(begun.parent, begun.context_ids, begun.images), following)
        return await self._conversation.say(
            following.parent, following.context_ids, images=following.images, begun=begun
        )

    async def _step(self, place: int) -> Answer:
        record = self._conversation.record
        turn = record.turns[place]
        completion = turn.completion
        said = self._conversation.boundary.said(completion.completion_ids, completion.finish_reason)
        self._conversation.note_calls(said)
        began_s = self._clock()
        answer = await self._taken(await self._environment.step(said))
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

    def _after(self, place: int, answer: Answer) -> Following:
        """Place of the turn after ``place``."""
        if answer.restart:
            return self._opening(answer.messages)
        boundary, record = self._conversation.boundary, self._conversation.record
        pictures = self._conversation.pictures
        written = record.turns[place].completion.completion_ids
        messages = self._observed.fitted(answer.messages, boundary)
        context = boundary.after(messages, written)
        if self._chat is not None:
            self._chat += boundary.message(written), *boundary.quoted(messages)
            retold = boundary.retold(self._chat, [*record.ids_through(place), *context], self._tools)
            if retold is not None:
                return Following(FROM_NOTHING, retold, pictures.images(self._chat))
        return Following(place, context, pictures.images(messages))


def _check_same(recorded: Following, now: Following) -> None:
    if recorded != now:
        alike = " and other pictures" if recorded.context_ids == now.context_ids else ""
        raise EnvironmentDiverged(
            f"its answer has {len(now.context_ids)} tokens{alike} after turn {now.parent}, expected the "
            f"{len(recorded.context_ids)} recorded ones after turn {recorded.parent}"
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
        if isinstance(content, list):  # Each text is cut alone, and no picture is.
            parts = [part if is_picture(part) else self._fitted_part(message, part, boundary) for part in content]
            return {**message, "content": parts}
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

    def _fitted_part(self, message: ChatMessage, part: dict[str, Any], boundary: TurnBoundary) -> dict[str, Any]:
        text = self._fitted({**message, "content": part.get("text", "")}, boundary)["content"]
        return {"type": "text", "text": text}

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
