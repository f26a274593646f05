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
from asyncrl.episodes.conversation import MALFORMED, Conversation, EpisodeOver
from asyncrl.episodes.environment import (
    Answer,
    EnvironmentDiverged,
    EnvironmentEpisode,
    Resume,
    Reward,
    Score,
    TaskInput,
)
from asyncrl.episodes.pictures import is_picture
from asyncrl.episodes.record import EpisodeState, RecordedTurn, ResumedEpisode, TurnContext
from asyncrl.errors import DataError, EnvironmentFailed
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT
from asyncrl.messages.verdict_limits import MAX_METRICS
from asyncrl.messages.words import FinishReason


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
        self._chats: dict[int, list[ChatMessage]] | None = None
        self._prompt = conversation.pictures.with_prompt(task.messages)
        if history == "as_template":
            self._chats = {0: conversation.boundary.quoted(self._prompt)}
        """The conversation of each seat as messages, if the chat template is to render it again."""
        self._state = resumed.state if resumed else EpisodeState(num_finished=0)
        self._recorded = list(resumed.finished[self._state.num_answered :]) if resumed else []
        self._begun = list(resumed.begun) if resumed else []
        conversation.reserve([*self._recorded, *self._begun])
        for place, turn in enumerate(conversation.record.turns):  # those that a snapshot contains
            turn.reward = self._state.rewards[place]  # later steps, which are taken again, may have added to it
            ended = turn.completion
            conversation.note_calls(conversation.boundary.said(ended.completion_ids, ended.finish_reason, tools))
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
        if not self._conversation.record.turns:  # else they are of a snapshot, and the answer is to the last of them
            self._check_seat(answer, "reset")
        context = self._next(answer)
        while True:
            try:
                place = await self._turn(context)
            except EpisodeOver as over:
                if self._conversation.record.turns:
                    return "length"
                raise EnvironmentFailed(
                    f"the first observation has {len(context.context_ids)} tokens and leaves no room for a turn: "
                    f"{over}",
                    retryable=False,
                ) from over
            answer = await self._step(place)
            if answer.done:
                return "stop"
            context = self._next(answer)

    async def _begin(self) -> Answer:
        if self._state.answer is None:
            return await self._taken(await self._environment.reset(self._task))
        await self._environment.restore(self._task, self._state.snapshot)
        self._chats = self._state.chats
        return self._state.answer

    async def _taken(self, answer: Answer) -> Answer:
        """An answer whose pictures are kept."""
        try:
            return await self._conversation.pictures.answer(answer)
        except DataError as error:
            raise EnvironmentFailed(f"the environment's answer cannot be shown: {error}", retryable=False) from error

    def _next(self, answer: Answer) -> TurnContext:
        """Context of the next turn, of ``answer.seat``."""
        last = self._conversation.record.lasts.get(answer.seat)
        if last is not None and not answer.restart:
            return self._after(last, answer)
        if answer.seat == 0 and not answer.restart:  # the first turn of all, or of the seat that has the prompt
            if not answer.messages:
                return TurnContext(FROM_PROMPT)
            return self._opening([*self._prompt, *answer.messages], 0)
        if not answer.messages and answer.seat:
            raise EnvironmentFailed(
                f"seat {answer.seat} is to speak and has read nothing: the first answer for another seat than 0 is all "
                f"that it reads, so give it messages",
                retryable=False,
            )
        return self._opening(answer.messages, answer.seat)

    def _opening(self, messages: list[ChatMessage], seat: int) -> TurnContext:
        """A context that follows nothing."""
        boundary, pictures = self._conversation.boundary, self._conversation.pictures
        if self._chats is not None:
            self._chats[seat] = boundary.quoted(messages)
        return TurnContext(FROM_NOTHING, boundary.opening(messages, self._tools), pictures.images(messages), seat)

    async def _turn(self, context: TurnContext) -> int:
        """Take the turn from the earlier attempt, or sample it. Returns its index."""
        if self._recorded:
            turn = self._recorded.pop(0)
            _check_same(turn.context, context)
            return self._conversation.record.add(turn)
        begun = self._begun.pop(0) if self._begun else None
        if begun:
            _check_same(begun.context, context)
        return await self._conversation.say(context, begun=begun)

    async def _step(self, place: int) -> Answer:
        record = self._conversation.record
        turn = record.turns[place]
        completion = turn.completion
        boundary = self._conversation.boundary
        said = boundary.said(completion.completion_ids, completion.finish_reason, self._tools)
        self._conversation.note_calls(said)
        began_s = self._clock()
        answer = await self._taken(await self._environment.step(replace(said, seat=turn.seat)))
        turn.call_s = self._clock() - began_s
        self._check_seat(answer, "step")
        self._reward(turn, answer)
        if self._resume == "snapshot" and not answer.done:
            snapshot = await self._environment.snapshot()
            self._state = EpisodeState(
                num_finished=place + 1,
                num_answered=place + 1,
                answer=answer,
                snapshot=snapshot,
                rewards=[turn.reward for turn in record.turns],
                chats=None if self._chats is None else {seat: list(chat) for seat, chat in self._chats.items()},
            )
        return answer

    def _check_seat(self, answer: Answer, method: str) -> None:
        if answer.seat >= (seats := self._conversation.limits.seats):
            raise EnvironmentFailed(
                f"{method} has seat {answer.seat} speak, expected 0 .. {seats - 1}; set environment.seats",
                retryable=False,
            )

    def _reward(self, turn: RecordedTurn, answer: Answer) -> None:
        """Reward the seat that has spoken, or each seat for its last turn. One that never speaks has no reward."""
        if not isinstance(answer.reward, list):
            turn.reward = answer.reward
            return
        turns, lasts = self._conversation.record.turns, self._conversation.record.lasts
        turn.reward = 0.0
        for seat, reward in enumerate(rewards_of(answer.reward, self._conversation.limits.seats, "step")):
            if seat in lasts:
                turns[lasts[seat]].reward += reward
            elif reward and not answer.done:
                raise EnvironmentFailed(
                    f"step gives seat {seat} the reward {reward:g} before it has spoken; give it later, or from score",
                    retryable=False,
                )

    def _after(self, place: int, answer: Answer) -> TurnContext:
        """Context of a seat whose last turn is ``place``, or of a branch that the template tells otherwise."""
        boundary, record = self._conversation.boundary, self._conversation.record
        pictures = self._conversation.pictures
        written = record.turns[place].completion.completion_ids
        messages = self._observed.fitted(answer.messages, boundary)
        context_ids = boundary.after(messages, written)
        if self._chats is not None:
            chat = self._chats[answer.seat]
            chat += boundary.message(written), *boundary.quoted(messages)
            retold = boundary.retold(chat, [*record.ids_through(place), *context_ids], self._tools)
            if retold is not None:
                return TurnContext(FROM_NOTHING, retold, pictures.images(chat), answer.seat)
        return TurnContext(place, context_ids, pictures.images(messages), answer.seat)


def _check_same(recorded: TurnContext, now: TurnContext) -> None:
    if recorded.seat != now.seat:
        raise EnvironmentDiverged(f"its answer has seat {now.seat} speak, expected the recorded seat {recorded.seat}")
    if recorded != now:
        alike = " and other pictures" if recorded.context_ids == now.context_ids else ""
        raise EnvironmentDiverged(
            f"its answer has {len(now.context_ids)} tokens{alike} after turn {now.parent}, expected the "
            f"{len(recorded.context_ids)} recorded ones after turn {recorded.parent}"
        )


def rewards_of(reward: Reward, num_seats: int, method: str) -> list[float]:
    """Reward of each seat; a number is that of every seat. Raises `EnvironmentFailed` for another number of them."""
    if not isinstance(reward, list):
        return [reward] * num_seats
    if len(reward) != num_seats:
        problem = f"{method} gives {len(reward)} rewards, expected {num_seats}, one for each of environment.seats"
        raise EnvironmentFailed(problem, retryable=False)
    return reward


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
