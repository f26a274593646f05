"""
Turns of the policy in one episode, within the limits of the run.

    say(context) ─▶ Request: all tokens up to its parent, and its own ─▶ engine ─▶ turn in the record

The loop of an environment says one turn after another; the gateway says whatever an agent program asks for, several
branches at a time. Each turn is recorded as soon as it is complete, and can then be stored.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import count
from typing import Literal

from msgspec import Struct, structs

from asyncrl.engine import Completion, PolicyTurn, Request, TurnBoundary
from asyncrl.episodes.pictures import EpisodePictures
from asyncrl.episodes.record import EpisodeLimits, EpisodeRecord, RecordedTurn, TurnContext
from asyncrl.episodes.tool_calls import FAULTS
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import Sampling

SEED_STEP = 0x9E3779B97F4A7C15
"""Distance of the seeds of two turns: 2^64 divided by the golden ratio, so that all differ."""
MAX_SEED = 2**63 - 1

ALL_MALFORMED = "malformed_calls"
MALFORMED = (ALL_MALFORMED, *(f"malformed_{fault}" for fault in FAULTS))
"""Metrics of an episode with tools: its malformed calls, and those of each kind."""
Limit = Literal["max_turns", "max_tokens", "max_malformed_calls", "pictures", "picture_bytes"]
Sample = Callable[[Request], Awaitable[Completion]]
"""Function that samples one request in the engine. Raises `EngineError`."""


class EpisodeOver(Exception):
    """A limit of the episode leaves no room for another turn."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(f"environment.{limit} is reached")
        self.limit: Limit = limit


class RunningTurn(Struct, eq=False):
    """A turn that the engine samples."""

    context: TurnContext
    request: Request
    draw: int


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
        self.malformed: Counter[str] = Counter()
        """Malformed calls of tools so far, by `MALFORMED`."""
        self._drawn: set[int] = set()
        """Draws of turns that may not be in the record: begun here, or on a node that was lost."""

    async def say(
        self,
        context: TurnContext,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        begun: RecordedTurn | None = None,
        observation: str | None = None,
    ) -> int:
        """
        Sample the turn that follows this context, and return its index in the record.

        Args:
            max_tokens: Fewer tokens than the run allows, such as those that an agent program asked for.
            stop: Texts that end the turn, besides those of the run.
            begun: Beginning of this turn that was sampled before, which is continued with its own draws.
            observation: Text of the context; None decodes it.

        Raises:
            EpisodeOver: There is no room for the turn.
            EngineError: It could not be sampled.
        """
        room = self._room(context.context_ids)
        written = min(room, self._sampling.max_tokens, max_tokens or room)
        draw = begun.draw if begun else self._next_draw()
        request = Request(
            prompt_ids=[*self.record.ids_through(context.parent), *context.context_ids],
            sampling=structs.replace(self._sampling, max_tokens=written, stop=[*self._sampling.stop, *stop]),
            seed=None if self._seed is None else (self._seed + draw * SEED_STEP) % MAX_SEED,
            resume_from=begun.completion if begun else None,
            priority=self._priority,
            images=self.pictures.files([*self.record.images_through(context.parent), *context.images]),
        )
        running = RunningTurn(context, request, draw)
        self.running.append(running)
        try:
            completion = await self._sample(request)
        finally:
            self.running.remove(running)
        if len(completion.grids) != len(request.images):
            raise EngineError(f"the engine returned {len(completion.grids)} grids of {len(request.images)} pictures")
        turn = context.turn(completion, draw)
        turn.observation = self.boundary.text(context.context_ids) if observation is None else observation
        turn.text = self.boundary.text(completion.completion_ids)
        place = self.record.add(turn)
        self._on_turn()
        return place

    def note_calls(self, said: PolicyTurn) -> list[str]:
        """
        Count the malformed calls of a turn: a policy that writes too many ends its episode.

        Returns the names of `MALFORMED` that were counted.
        """
        faults = [call.fault or "form" for call in said.tool_calls if call.fault or call.problem]
        counted = [name for fault in faults for name in (ALL_MALFORMED, f"malformed_{fault}")]
        self.malformed.update(counted)
        return counted

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
        if 0 < self.limits.max_malformed_calls <= self.malformed[ALL_MALFORMED]:
            raise EpisodeOver("max_malformed_calls")
        reserved = sum(len(turn.context.context_ids) + turn.request.sampling.max_tokens for turn in self.running)
        room = self.limits.max_tokens - self.record.num_tokens - reserved - len(context_ids)
        if room < 1:
            raise EpisodeOver("max_tokens")
        return room
