"""
Record of one episode: a tree of turns, each with the tokens that the policy read and wrote.

    prompt ── turn 0 ── turn 1 ── turn 3
                 └───── turn 2                branches: turns 2 and 3

Sampled token ids are kept as they were sampled: what a turn read before is the concatenation of the ids of the turns
above it, never text that was encoded again. Pure bookkeeping.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain

from msgspec import Struct

from asyncrl.checks.turns import path_to
from asyncrl.messages.trajectory import FROM_NOTHING, Span, Turn
from asyncrl.messages.words import FinishReason
from asyncrl.rollout.engine import Completion


class RecordedTurn(Struct):
    """One turn. The environment's answer to it is filled in when it arrives."""

    parent: int
    """Index of an earlier turn, `FROM_PROMPT` or `FROM_NOTHING`."""
    context_ids: list[int]
    completion: Completion
    """Tokens that the policy wrote; spans begin at 0."""
    observation: str = ""
    """Text of the context."""
    text: str = ""
    """Text of the completion, without special tokens."""
    reward: float = 0.0
    call_s: float = 0.0
    is_trained: bool = True
    draw: int = 0
    """Number that its seed is made of; turns of an episode have different ones."""


class EpisodeRecord:
    """Turns of one episode, in the order in which they were written."""

    def __init__(self, prompt_ids: Sequence[int], turns: Iterable[RecordedTurn] = ()) -> None:
        self.prompt_ids = list(prompt_ids)
        self.turns = list(turns)
        self.scores: dict[str, float] = {}
        """Metrics of the environment."""

    @property
    def num_tokens(self) -> int:
        """Tokens after the prompt, context and written."""
        return sum(len(turn.context_ids) + len(turn.completion.completion_ids) for turn in self.turns)

    @property
    def reward(self) -> float:
        """Sum of the rewards of all turns."""
        return sum(turn.reward for turn in self.turns)

    def add(self, turn: RecordedTurn) -> int:
        """Append a turn and return its index."""
        self.turns.append(turn)
        return len(self.turns) - 1

    def ids_through(self, place: int) -> list[int]:
        """All tokens that the policy has read and written up to the end of a turn, or of the prompt."""
        turns = [self.turns[number] for number in self.path(place)]
        read = [[] if self.root(place) == FROM_NOTHING else self.prompt_ids]
        read += [ids for turn in turns for ids in (turn.context_ids, turn.completion.completion_ids)]
        return list(chain.from_iterable(read))

    def path(self, place: int) -> list[int]:
        """Indices of the turns from the root to ``place``, which is the last."""
        return path_to(self.turns, place)

    def root(self, place: int) -> int:
        """`FROM_PROMPT` or `FROM_NOTHING`: what the branch of ``place`` begins with."""
        path = self.path(place)
        return self.turns[path[0]].parent if path else place

    def wire_turns(self) -> list[Turn]:
        """The turns as `Trajectory.turns`."""
        return [
            Turn(
                parent=turn.parent,
                num_context=len(turn.context_ids),
                num_written=len(turn.completion.completion_ids),
                reward=turn.reward,
                is_trained=turn.is_trained,
                call_s=turn.call_s,
                observation=turn.observation,
                text=turn.text,
            )
            for turn in self.turns
        ]

    def context_ids(self) -> list[int]:
        """Context of all turns, as `Trajectory.context_ids`."""
        return list(chain.from_iterable(turn.context_ids for turn in self.turns))

    def completion(self, finish_reason: FinishReason) -> Completion:
        """All that the policy wrote, in the order written, as one completion."""
        return joined([turn.completion for turn in self.turns], finish_reason)


def joined(parts: Sequence[Completion], finish_reason: FinishReason) -> Completion:
    """Completions one after another; spans of the same version that meet become one."""
    starts = accumulate((len(part.completion_ids) for part in parts), initial=0)
    spans: list[Span] = []
    for start, part in zip(starts, parts, strict=False):
        for span in part.spans:
            moved = Span(span.policy_version, start + span.start, start + span.end)
            if spans and spans[-1].policy_version == moved.policy_version:
                moved = Span(moved.policy_version, spans.pop().start, moved.end)
            spans.append(moved)
    pictured = next((part for part in parts if part.grids), None)  # branches that follow nothing read none
    return Completion(
        completion_ids=list(chain.from_iterable(part.completion_ids for part in parts)),
        behavior_logprobs=list(chain.from_iterable(part.behavior_logprobs for part in parts)),
        spans=spans,
        finish_reason=finish_reason,
        generate_s=sum(part.generate_s for part in parts),
        mask_counts=list(chain.from_iterable(part.mask_counts for part in parts)),
        mask_ids=list(chain.from_iterable(part.mask_ids for part in parts)),
        grids=pictured.grids if pictured else [],
        processor=pictured.processor if pictured else "",
    )


def cut(completion: Completion, lengths: Sequence[int]) -> list[Completion]:
    """Inverse of `joined`: completions of these lengths, whose spans begin at 0."""
    parts: list[Completion] = []
    start = mask_start = 0
    for length in lengths:
        end = start + length
        counts = completion.mask_counts[start:end]
        mask_end = mask_start + sum(counts)
        parts.append(
            Completion(
                completion_ids=completion.completion_ids[start:end],
                behavior_logprobs=completion.behavior_logprobs[start:end],
                spans=[
                    Span(span.policy_version, max(span.start, start) - start, min(span.end, end) - start)
                    for span in completion.spans
                    if span.start < end and span.end > start
                ],
                finish_reason="stop",
                generate_s=0.0 if parts else completion.generate_s,
                mask_counts=counts,
                mask_ids=completion.mask_ids[mask_start:mask_end],
                grids=completion.grids,
                processor=completion.processor,
            )
        )
        start, mask_start = end, mask_end
    return parts
