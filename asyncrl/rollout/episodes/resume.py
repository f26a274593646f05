"""
Stored form of an unfinished episode: what there is besides its tokens, and how it is read back.

    turns    0 ── 1 ── 2 ── 3 · · ·          finished: 0 to 2, and a beginning of turn 3
    state    answered: 2                     the environment has answered turns 0 and 1
             answer to turn 1, snapshot      if the environment can save itself
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from asyncrl.environment.interface import Answer, ChatMessage
from asyncrl.errors import EngineError
from asyncrl.messages.words import FinishReason
from asyncrl.rollout.episodes.record import EpisodeRecord, RecordedTurn, cut
from asyncrl.rollout.results import Sampled


class EpisodeState(Struct, frozen=True, kw_only=True):
    """Contents of `Trajectory.snapshot`."""

    num_finished: int
    """Turns that are complete; those after them are beginnings."""
    num_answered: int = 0
    """Turns that the snapshot contains, with the environment's answers to them."""
    answer: Answer | None = None
    """Answer to the last of these; None without a snapshot."""
    snapshot: bytes = b""
    cut: list[int] = []
    """Indices of the turns that were cut at their limit."""
    draws: list[int] = []
    """`RecordedTurn.draw` of each turn."""
    chat: list[ChatMessage] | None = None
    """The conversation before the last of these turns, if the chat template is to render it again."""


class Resumed(Struct, frozen=True, kw_only=True):
    """An unfinished episode, as it was stored or was in hand when its worker was lost."""

    state: EpisodeState
    finished: Sequence[RecordedTurn]
    begun: Sequence[RecordedTurn] = ()
    """Beginnings of turns that the engine was sampling."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the policy wrote."""
        return sum(len(turn.completion.completion_ids) for turn in (*self.finished, *self.begun))


def encode(state: EpisodeState) -> bytes:
    return msgspec.msgpack.encode(state)


def read(sampled: Sampled) -> Resumed:
    """An unfinished episode of another node. Raises a retryable `EngineError` if it is damaged."""
    try:
        state = msgspec.msgpack.decode(sampled.snapshot, type=EpisodeState)
    except msgspec.DecodeError as error:
        raise EngineError(f"the stored part of an episode to resume from is damaged: {error}") from error
    turns = recorded(sampled)
    if not 0 <= state.num_answered <= state.num_finished <= len(turns):
        raise EngineError(
            f"the stored part of an episode to resume from is damaged: {state.num_answered} answered and "
            f"{state.num_finished} finished turns of {len(turns)}"
        )
    if len(state.draws) not in (0, len(turns)):
        raise EngineError(
            f"the stored part of an episode to resume from is damaged: {len(state.draws)} draws of {len(turns)} turns"
        )
    for place, turn in enumerate(turns):
        turn.draw = state.draws[place] if state.draws else place
        reason: FinishReason = "length" if place in state.cut else "stop"
        turn.completion = replace(turn.completion, finish_reason=reason if place < state.num_finished else "unfinished")
    return Resumed(state=state, finished=turns[: state.num_finished], begun=turns[state.num_finished :])


def recorded(sampled: Sampled) -> list[RecordedTurn]:
    """Turns of a stored episode as a record has them."""
    completions = cut(sampled.completion, [turn.num_written for turn in sampled.turns])
    made, start = [], 0
    for turn, completion in zip(sampled.turns, completions, strict=True):
        made.append(
            RecordedTurn(
                parent=turn.parent,
                context_ids=sampled.context_ids[start : start + turn.num_context],
                completion=completion,
                observation=turn.observation,
                text=turn.text,
                reward=turn.reward,
                call_s=turn.call_s,
                is_trained=turn.is_trained,
            )
        )
        start += turn.num_context
    return made


def as_sampled(record: EpisodeRecord, begun: Sequence[RecordedTurn], state: EpisodeState) -> Sampled | None:
    """An unfinished episode in its stored form; None before the first token."""
    whole = EpisodeRecord(record.prompt_ids, [*record.turns, *begun])
    if not whole.turns:
        return None
    cut_turns = [place for place, turn in enumerate(record.turns) if turn.completion.finish_reason == "length"]
    return Sampled(
        prompt_ids=record.prompt_ids,
        completion=whole.completion("unfinished"),
        turns=whole.wire_turns(),
        context_ids=whole.context_ids(),
        snapshot=encode(replace(state, cut=cut_turns, draws=[turn.draw for turn in whole.turns])),
    )
