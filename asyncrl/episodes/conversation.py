"""
Turns of the policy in one episode, within the limits of the run.

    say(parent, context) ─▶ Request: all tokens up to the parent, and the context ─▶ engine ─▶ turn in the record

The loop of an environment says one turn after another; the gateway says whatever an agent program asks for, several
branches at a time. Each turn is recorded as soon as it is complete, and can then be stored.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import count
from typing import Literal

from msgspec import Struct, structs

from asyncrl.engine import Completion, PolicyTurn, Request, TurnBoundary
from asyncrl.episodes.pictures import EpisodePictures
from asyncrl.episodes.record import EpisodeLimits, EpisodeRecord, RecordedTurn
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import Image, Sampling

SEED_STEP = 0x9E3779B97F4A7C15
"""Distance of the seeds of two turns: 2^64 divided by the golden ratio, so that all differ."""
MAX_SEED = 2**63 - 1

Limit = Literal["max_turns", "max_tokens", "max_malformed_calls"]
Sample = Callable[[Request], Awaitable[Completion]]
"""Function that samples one request in the engine. Raises `EngineError`."""


class EpisodeOver(Exception):
    """A limit of the episode leaves no room for another turn."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(f"environment.{limit} is reached")
        self.limit: Limit = limit


class RunningTurn(Struct, eq=False):
    """A turn that the engine samples."""

    parent: int
    context_ids: list[int]
    request: Request
    draw: int
    images: list[Image]


class Conversation:
    """
    Samples turns of one episode into its record.

    Args:
        sampling: Of one turn; ``max_tokens`` is lowered to what is left of the episode.
        seed: Of the episode; every turn has one of its own. None draws from the engine's generator.
        pictures: Files of the pictures that the record names; None takes them for those of an episode without any.
        on_turn: Called after each turn that was recorded.
    """

    def __init__(
        self,
        record: EpisodeRecord,
        sample: Sample,
        boundary: TurnBoundary,
        *,
        sampling: Sampling,
        limits: EpisodeLimits,
        seed: int | None = None,
        priority: int = 0,
        pictures: EpisodePictures | None = None,
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        self.record = record
        self.boundary = boundary
        self.running: list[RunningTurn] = []
        self._sample = sample
        self._sampling = sampling
        self.limits = limits
        self._seed = seed
        self._priority = priority
        self.pictures = pictures or EpisodePictures(limits.pictures)
        self._on_turn = on_turn
        self.num_malformed = 0
        """Calls of tools so far that cannot be read."""
        self._drawn: set[int] = set()
        """Draws of turns that may not be in the record: begun here, or on a node that was lost."""

    async def say(
        self,
        parent: int,
        context_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        begun: RecordedTurn | None = None,
        observation: str | None = None,
    ) -> int:
        """
        Sample the turn that follows ``parent`` and ``context_ids``, and return its index in the record.

        Args:
            images: Pictures of the context, in the order of their tokens.
            max_tokens: Fewer tokens than the run allows, such as those that an agent program asked for.
            stop: Texts that end the turn, besides those of the run.
            begun: Beginning of this turn that was sampled before, which is continued with its own draws.
            observation: Text of the context; None decodes it.

        Raises:
            EpisodeOver: There is no room for the turn.
            EngineError: It could not be sampled.
        """
        room = self._room(context_ids)
        written = min(room, self._sampling.max_tokens, max_tokens or room)
        draw = begun.draw if begun else self._next_draw()
        request = Request(
            prompt_ids=[*self.record.ids_through(parent), *context_ids],
            sampling=structs.replace(self._sampling, max_tokens=written, stop=[*self._sampling.stop, *stop]),
            seed=None if self._seed is None else (self._seed + draw * SEED_STEP) % MAX_SEED,
            resume_from=begun.completion if begun else None,
            priority=self._priority,
            images=self.pictures.files([*self.record.images_through(parent), *images]),
        )
        turn = RunningTurn(parent, list(context_ids), request, draw, list(images))
        self.running.append(turn)
        try:
            completion = await self._sample(request)
        finally:
            self.running.remove(turn)
        if len(completion.grids) != len(request.images):
            raise EngineError(f"the engine returned {len(completion.grids)} grids of {len(request.images)} pictures")
        place = self.record.add(
            RecordedTurn(
                parent=parent,
                context_ids=turn.context_ids,
                completion=completion,
                observation=self.boundary.text(context_ids) if observation is None else observation,
                text=self.boundary.text(completion.completion_ids),
                draw=draw,
                images=turn.images,
            )
        )
        self._on_turn()
        return place

    def note_calls(self, said: PolicyTurn) -> int:
        """Count the calls of a turn that cannot be read: a policy that writes only those ends its episode."""
        num = sum(bool(call.problem) for call in said.tool_calls)
        self.num_malformed += num
        return num

    def reserve(self, turns: Iterable[RecordedTurn]) -> None:
        """Give the draws of these turns, which are not in the record yet, to no other."""
        self._drawn |= {turn.draw for turn in turns}

    def _next_draw(self) -> int:
        """
        The first draw that no turn has had: the next one, or that of a turn that was lost with its node.

        A turn that was cancelled keeps its draw, so that no later one repeats it.
        """
        drawn = self._drawn.union(turn.draw for turn in self.record.turns)
        draw = next(number for number in count() if number not in drawn)
        self._drawn.add(draw)
        return draw

    def _room(self, context_ids: Sequence[int]) -> int:
        """Tokens that the policy may write after this context, besides those that other running turns may write."""
        if len(self.record.turns) + len(self.running) >= self.limits.max_turns:
            raise EpisodeOver("max_turns")
        if 0 < self.limits.max_malformed_calls <= self.num_malformed:
            raise EpisodeOver("max_malformed_calls")
        reserved = sum(len(turn.context_ids) + turn.request.sampling.max_tokens for turn in self.running)
        room = self.limits.max_tokens - self.record.num_tokens - reserved - len(context_ids)
        if room < 1:
            raise EpisodeOver("max_tokens")
        return room
