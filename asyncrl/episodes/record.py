"""
Record of one episode: a tree of turns, each with the tokens that the policy read and wrote, and its stored form.

    prompt ── turn 0 ── turn 1 ── turn 3
                 └───── turn 2                branches: turns 2 and 3

Sampled token ids are kept as they were sampled: what a turn read before is the concatenation of the ids of the turns
above it, never text that was encoded again. Pure bookkeeping.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import accumulate, chain

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from asyncrl.engine import ChatMessage, Completion
from asyncrl.episodes.environment import Answer
from asyncrl.episodes.pictures import EpisodePictures, PictureLimits
from asyncrl.errors import EngineError
from asyncrl.messages.sound import path_to, reads_prompt, shown_images
from asyncrl.messages.trajectory import FROM_NOTHING, Image, Span, Turn, seat_rewards
from asyncrl.messages.words import FinishReason
from asyncrl.vision.positions import Grid


class EpisodeLimits(Struct, frozen=True, kw_only=True):
    """Limits of an episode, as `Environment` has them."""

    max_turns: int
    max_tokens: int
    """Tokens after the prompt, of the policy and of the environment."""
    max_malformed_calls: int = 0
    """Calls of tools that cannot be read; 0: no limit."""
    seats: int = 1
    """Seats that may speak."""
    pictures: PictureLimits = PictureLimits(64, 16 << 20)
    """Limits of the pictures that the environment shows."""


class SampledTrajectory(Struct, frozen=True, kw_only=True):
    """Sampled contents of a trajectory, finished or not."""

    prompt_ids: list[int]
    completion: Completion
    """All that the policy wrote."""
    text: str = ""
    """Text of the completion, or of the last turn; empty while unfinished."""
    turns: list[Turn] = []
    """Turns of an episode; empty for one completion after the prompt."""
    context_ids: list[int] = []
    scores: dict[str, float] = {}
    snapshot: bytes = b""
    """State that another node needs to continue an unfinished episode, besides its tokens."""
    opened: str = ""
    """`Trajectory.opened`."""
    images: list[Image] = []
    """`Trajectory.images` of an episode; a single completion has those of its prompt."""
    image_files: list[bytes] = []
    """`Trajectory.image_files`."""


class TurnContext(Struct, frozen=True):
    """Parent of a turn of the policy, and the tokens and pictures that the policy reads after it."""

    parent: int
    """Index of an earlier turn, `FROM_PROMPT` or `FROM_NOTHING`."""
    context_ids: list[int] = []
    images: list[Image] = []
    """Pictures of the context, in the order of their tokens."""
    seat: int = 0
    """Seat that speaks; that of the parent, if it is a turn."""

    def turn(self, completion: Completion, draw: int) -> "RecordedTurn":
        """The turn that the policy wrote here, with this draw."""
        return RecordedTurn(self.parent, self.context_ids, completion, draw=draw, seat=self.seat, images=self.images)


class RecordedTurn(Struct):
    """One turn. The environment's answer to it is filled in when it arrives."""

    parent: int
    """Index of an earlier turn, `FROM_PROMPT` or `FROM_NOTHING`."""
    context_ids: list[int]
    completion: Completion
    """Tokens that the policy wrote; spans begin at 0."""
    observation: str = ""
    """Text of the tokens that the policy read before this turn."""
    text: str = ""
    """Text of the completion, without special tokens."""
    reward: float = 0.0
    call_s: float = 0.0
    is_trained: bool = True
    draw: int = 0
    """Number that its seed is made of; turns of an episode have different ones."""
    seat: int = 0
    images: list[Image] = []
    """Pictures of the context, in the order of their tokens."""

    @property
    def context(self) -> TurnContext:
        return TurnContext(self.parent, self.context_ids, self.images, self.seat)


class EpisodeRecord:
    """
    Turns of one episode, in the order in which they were written.

    Args:
        images: Pictures of the prompt.
    """

    def __init__(
        self, prompt_ids: Sequence[int], turns: Iterable[RecordedTurn] = (), images: Sequence[Image] = ()
    ) -> None:
        self.prompt_ids = list(prompt_ids)
        self.prompt_images = list(images)
        self.turns = list(turns)
        self.scores: dict[str, float] = {}
        """Metrics of the environment."""

    @property
    def num_tokens(self) -> int:
        """Tokens after the prompt, context and written."""
        return sum(len(turn.context_ids) + len(turn.completion.completion_ids) for turn in self.turns)

    @property
    def rewards(self) -> dict[int, float]:
        """Sum of the rewards of each seat that spoke."""
        return seat_rewards(self.turns)

    @property
    def lasts(self) -> dict[int, int]:
        """Index of the last turn of each seat that spoke."""
        return {turn.seat: place for place, turn in enumerate(self.turns)}

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

    def images_through(self, place: int) -> list[Image]:
        """Pictures among `ids_through`, in the order of their tokens."""
        read = [[] if self.root(place) == FROM_NOTHING else self.prompt_images]
        return list(chain.from_iterable(read + [self.turns[number].images for number in self.path(place)]))

    def images(self) -> list[Image]:
        """Pictures that the policy has read, as `Trajectory.images`."""
        read = [self.prompt_images if reads_prompt(self.turns) else []]
        return list(chain.from_iterable(read + [turn.images for turn in self.turns]))

    def image_files(self, pictures: EpisodePictures) -> list[bytes]:
        """Files of the pictures that only contexts have, as `Trajectory.image_files`."""
        num_prompt = len(self.prompt_images) if reads_prompt(self.turns) else 0
        return list(pictures.files(shown_images(self.images(), num_prompt)))

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
                seat=turn.seat,
                num_images=len(turn.images),
            )
            for turn in self.turns
        ]

    def context_ids(self) -> list[int]:
        """Context of all turns, as `Trajectory.context_ids`."""
        return list(chain.from_iterable(turn.context_ids for turn in self.turns))

    def completion(self, finish_reason: FinishReason) -> Completion:
        """All that the policy wrote, in the order written, as one completion with the grids of all `images`."""
        grids: dict[bytes, Grid] = {}
        for turn in self.turns:
            read = [*self.images_through(turn.parent), *turn.images]
            grids.update(zip((image.digest for image in read), turn.completion.grids, strict=False))
        return replace(
            joined([turn.completion for turn in self.turns], finish_reason),
            grids=[grids[image.digest] for image in self.images() if image.digest in grids],
            processor=next((turn.completion.processor for turn in self.turns if turn.completion.grids), ""),
        )


def joined(parts: Sequence[Completion], finish_reason: FinishReason) -> Completion:
    """Completions one after another, without grids; spans of the same version that meet become one."""
    starts = accumulate((len(part.completion_ids) for part in parts), initial=0)
    spans: list[Span] = []
    for start, part in zip(starts, parts, strict=False):
        for span in part.spans:
            moved = Span(span.policy_version, start + span.start, start + span.end)
            if spans and spans[-1].policy_version == moved.policy_version:
                moved = Span(moved.policy_version, spans.pop().start, moved.end)
            spans.append(moved)
    return Completion(
        completion_ids=list(chain.from_iterable(part.completion_ids for part in parts)),
        behavior_logprobs=list(chain.from_iterable(part.behavior_logprobs for part in parts)),
        spans=spans,
        finish_reason=finish_reason,
        generate_s=sum(part.generate_s for part in parts),
        mask_counts=list(chain.from_iterable(part.mask_counts for part in parts)),
        mask_ids=list(chain.from_iterable(part.mask_ids for part in parts)),
    )


def cut(completion: Completion, lengths: Sequence[int]) -> list[Completion]:
    """Cut a completion into completions of these lengths, whose spans begin at 0: the inverse of `joined`."""
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
            )
        )
        start, mask_start = end, mask_end
    return parts


# ── resume ────────────────────────────────────────────────────────────────────────────────────
# Stored form of an unfinished episode: what there is besides its tokens, and how it is read back.
#
#     turns    0 ── 1 ── 2 ── 3 · · ·          finished: 0 to 2, and a beginning of turn 3
#     state    answered: 2                     the environment has answered turns 0 and 1
#              answer to turn 1, snapshot      if the environment can save itself


class EpisodeState(Struct, frozen=True, kw_only=True):
    """State of an unfinished episode besides its tokens: the contents of `Trajectory.snapshot`."""

    num_finished: int
    """Turns that are complete; those after them are beginnings."""
    num_answered: int = 0
    """Turns that the snapshot contains, with the environment's answers to them."""
    answer: Answer | None = None
    """The environment's answer to the last turn in the snapshot; None without one."""
    snapshot: bytes = b""
    rewards: list[float] = []
    """Rewards of the turns in the snapshot, when it was taken."""
    cut: list[int] = []
    """Indices of the turns that were cut at their limit."""
    draws: list[int] = []
    """`RecordedTurn.draw` of each turn."""
    chats: dict[int, list[ChatMessage]] | None = None
    """The conversation of each seat before the last of these turns, if the chat template is to render it again."""


class ResumedEpisode(Struct, frozen=True, kw_only=True):
    """An unfinished episode, as it was stored or was in hand when its worker was lost."""

    state: EpisodeState
    finished: Sequence[RecordedTurn]
    begun: Sequence[RecordedTurn] = ()
    """Beginnings of turns that the engine was sampling."""
    shown: Mapping[bytes, bytes] = {}
    """Files of the pictures that it was shown, by digest."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the policy wrote."""
        return sum(len(turn.completion.completion_ids) for turn in (*self.finished, *self.begun))


def read(sampled: SampledTrajectory) -> ResumedEpisode:
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
    if len(state.rewards) != state.num_answered:
        raise EngineError(
            f"the stored part of an episode to resume from is damaged: {len(state.rewards)} rewards of "
            f"{state.num_answered} answered turns"
        )
    if len(state.draws) not in (0, len(turns)):
        raise EngineError(
            f"the stored part of an episode to resume from is damaged: {len(state.draws)} draws of {len(turns)} turns"
        )
    for place, turn in enumerate(turns):
        turn.draw = state.draws[place] if state.draws else place
        reason: FinishReason = "length" if place in state.cut else "stop"
        turn.completion = replace(turn.completion, finish_reason=reason if place < state.num_finished else "unfinished")
    return ResumedEpisode(
        state=state,
        finished=turns[: state.num_finished],
        begun=turns[state.num_finished :],
        shown={sha256(file).digest(): file for file in sampled.image_files},
    )


def recorded(sampled: SampledTrajectory) -> list[RecordedTurn]:
    """Turns of a stored episode as a record has them."""
    completions = cut(sampled.completion, [turn.num_written for turn in sampled.turns])
    num_shown = sum(turn.num_images for turn in sampled.turns)
    num_prompt = image_start = len(sampled.images) - num_shown
    grids = {image.digest: grid for image, grid in zip(sampled.images, sampled.completion.grids, strict=True)}
    record, start = EpisodeRecord(sampled.prompt_ids, images=sampled.images[:num_prompt]), 0
    for turn, completion in zip(sampled.turns, completions, strict=True):
        images = sampled.images[image_start : image_start + turn.num_images]
        read = [*record.images_through(turn.parent), *images]
        record.add(
            RecordedTurn(
                parent=turn.parent,
                context_ids=sampled.context_ids[start : start + turn.num_context],
                completion=replace(
                    completion,
                    grids=[grids[image.digest] for image in read],
                    processor=sampled.completion.processor if read else "",
                ),
                observation=turn.observation,
                text=turn.text,
                reward=turn.reward,
                call_s=turn.call_s,
                is_trained=turn.is_trained,
                seat=turn.seat,
                images=images,
            )
        )
        start, image_start = start + turn.num_context, image_start + turn.num_images
    return record.turns


def as_sampled(
    record: EpisodeRecord,
    begun: Sequence[RecordedTurn],
    state: EpisodeState,
    pictures: EpisodePictures | None = None,
) -> SampledTrajectory | None:
    """
    An unfinished episode in its stored form; None before the first token.

    ``pictures`` are those of the record, and of the answer that it goes on from; None for an episode without any.
    """
    whole = EpisodeRecord(record.prompt_ids, [*record.turns, *begun], record.prompt_images)
    if not whole.turns:
        return None
    cut_turns = [place for place, turn in enumerate(record.turns) if turn.completion.finish_reason == "length"]
    files, in_turns = [], {image.digest for image in whole.images()}
    if pictures:
        later = [file for digest, file in pictures.shown.items() if digest not in in_turns]
        files = [*whole.image_files(pictures), *later]
    state = replace(state, cut=cut_turns, draws=[turn.draw for turn in whole.turns])
    return SampledTrajectory(
        prompt_ids=record.prompt_ids,
        completion=whole.completion("unfinished"),
        turns=whole.wire_turns(),
        context_ids=whole.context_ids(),
        snapshot=msgspec.msgpack.encode(state),
        images=whole.images(),
        image_files=files,
    )
