"""All that the episodes of one rollout share: environments, turn boundaries, limits, and how many are active."""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from asyncrl.config.sections.environment import Environment
from asyncrl.data.tools import tool_names
from asyncrl.engine import Completion, ConversingEngine, MeasuredEngine, Request, TurnBoundary
from asyncrl.episodes.call_forms import plain
from asyncrl.episodes.conversation import Conversation, Sample
from asyncrl.episodes.environment import EnvironmentEpisode, Environments, TaskInput, check_row_tools
from asyncrl.episodes.episode import AgentProgram, Attempt, Episode
from asyncrl.episodes.gate import Concurrency, EpisodeGate
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.episodes.pictures import EpisodePictures, PictureLimits
from asyncrl.episodes.record import EpisodeLimits, EpisodeRecord, ResumedEpisode, SampledTrajectory, read
from asyncrl.episodes.steps import EpisodeSteps, ObservationBudget
from asyncrl.errors import ConfigError, EngineError
from asyncrl.log import get_logger
from asyncrl.messages.session import ContainerCounts
from asyncrl.messages.trajectory import Prompt, Sampling, Unit

FOLD = 0x9E3779B1
"""Multiplier that folds a seed to 32 bits: 2^32 divided by the golden ratio."""


class Episodes:
    """
    Begins episodes. Environments and engine are borrowed.

    Args:
        run: Name of the run, the beginning of the names of its episodes.
        most: Episodes that may be active at a time.
        gateway: Where agent programs ask for turns; None for an environment that answers turn by turn.
    """

    def __init__(
        self,
        config: Environment,
        environments: Environments,
        engine: ConversingEngine,
        *,
        run: str,
        most: int = 1 << 20,
        gateway: Gateway | None = None,
    ) -> None:
        self._config = config
        self._environments = environments
        self._engine = engine
        self._boundaries: dict[bool, TurnBoundary] = {}
        """Boundaries of chats (True) and of plain texts, each made and checked for the first prompt that needs it."""
        self._run = run
        self._gateway = gateway
        self.gate: EpisodeGate[Unit] = EpisodeGate(most)
        self._in_hand: WeakValueDictionary[Unit, Episode] = WeakValueDictionary()
        """The newest episode of each unit, as long as somebody plays it or means to."""
        self._description = environments.description
        self._tools = msgspec.json.encode(self._description.tools).decode() if self._description.tools else ""
        self.limits = EpisodeLimits(
            max_turns=config.max_turns,
            max_tokens=config.max_tokens,
            max_malformed_calls=config.max_malformed_calls,
            seats=config.seats,
            pictures=PictureLimits(config.pictures, config.picture_bytes),
        )

    @property
    def containers(self) -> ContainerCounts | None:
        """Containers of the episodes; None without ``[environment.container]``."""
        return self._environments.containers

    @property
    def num_active_tokens(self) -> int:
        """Tokens of all active episodes, which the KV cache would hold if it had room for them."""
        return sum(self._in_hand[unit].num_tokens for unit in self.gate.active if unit in self._in_hand)

    def shown(self, prompt: Prompt) -> Prompt:
        """
        The prompt as the policy reads it: with the tools of its row, or else of the environment.

        Raises a final `EngineError` if the environment does not have a tool of the row.
        """
        try:
            check_row_tools(tool_names(prompt.tools), self._description)
        except ConfigError as error:
            raise EngineError(str(error), retryable=False) from error
        tools = prompt.tools or self._tools
        if tools and self._config.tool_parser == "plain" and prompt.chat:
            return replace(prompt, chat=plain(prompt.chat, msgspec.json.decode(tools)), tools="")
        return replace(prompt, tools=tools)

    def begin(
        self,
        unit: Unit,
        prompt: Prompt,
        prompt_ids: list[int],
        *,
        sample: Sample,
        written: Callable[[Request], Completion | None],
        sampling: Sampling,
        seed: int | None,
        priority: int = 0,
        images: tuple[bytes, ...] = (),
        prefix: SampledTrajectory | None = None,
        on_turn: Callable[[], None] = lambda: None,
        on_started_over: Callable[[int, str], None] = lambda num_tokens, reason: None,
    ) -> Episode:
        """
        The episode of a unit, not yet playing.

        Args:
            sample: Samples one turn.
            written: Tokens of a running request so far.
            images: Files of the prompt's pictures.
            prefix: What another node has stored of it.
        """
        task = self._task(unit, prompt, seed, images)
        boundary = self._boundary(is_chat=bool(prompt.chat))
        pictures = EpisodePictures(self.limits.pictures, prompt.images, images)

        async def seated(request: Request) -> Completion:
            async with self.gate.turn(unit):
                return await sample(request)

        def converse(environment: EnvironmentEpisode, resumed: ResumedEpisode | None) -> Attempt:
            answered = resumed.finished[: resumed.state.num_answered] if resumed else []
            conversation = Conversation(
                EpisodeRecord(prompt_ids, answered, prompt.images),
                seated,
                boundary,
                sampling=sampling,
                limits=self.limits,
                seed=seed,
                priority=priority,
                pictures=pictures.with_shown(resumed.shown if resumed else {}),
                on_turn=on_turn,
            )
            player = self._player(conversation, environment, task, prompt.tools or self._tools, resumed)
            return Attempt(conversation, player)

        self._in_hand[unit] = episode = Episode(
            self._environments,
            task,
            prompt_ids,
            converse,
            pictures=pictures,
            written=written,
            episode_s=self._config.episode_s,
            resumed=read(prefix) if prefix else None,
            can_resume=self._description.resume != "none",
            on_started_over=on_started_over,
            on_end=lambda: self._ended(unit, episode),
        )
        return episode

    def _ended(self, unit: Unit, episode: Episode) -> None:
        if self._in_hand.get(unit) is episode:  # A later lease of the unit may have begun another one.
            self.gate.leave(unit)

    def _player(
        self,
        conversation: Conversation,
        environment: EnvironmentEpisode,
        task: TaskInput,
        tools: str,
        resumed: ResumedEpisode | None,
    ) -> EpisodeSteps | AgentProgram:
        if self._gateway:
            return AgentProgram(conversation, self._gateway, environment, task, tools=tools, resumed=resumed)
        return EpisodeSteps(
            conversation,
            environment,
            task,
            resume=self._description.resume,
            tools=tools,
            history=self._config.history,
            observed=ObservationBudget(self._config.most_observed, self._config.observation_cut),
            resumed=resumed,
        )

    def _boundary(self, *, is_chat: bool) -> TurnBoundary:
        if is_chat not in self._boundaries:
            parser = self._config.tool_parser
            self._boundaries[is_chat] = self._engine.boundary(is_chat=is_chat, tools=self._tools, tool_parser=parser)
        return self._boundaries[is_chat]

    def _task(self, unit: Unit, prompt: Prompt, seed: int | None, images: tuple[bytes, ...]) -> TaskInput:
        name = f"{self._run}/{unit.split}/{unit.group_id}/{unit.index}"
        # At most 32 bits, as ``numpy.random.seed`` takes them. Seeds of one run stay different, and so do other runs'.
        folded = zlib.crc32(name.encode()) if seed is None else (seed + (seed >> 32) * FOLD) % 2**32
        return TaskInput(
            messages=list(prompt.chat) or [{"role": "user", "content": prompt.text}],
            answer=prompt.answer,
            data_source=prompt.data_source,
            extra=prompt.extra,
            seed=folded,
            name=name,
            images=images,
            tools=msgspec.json.decode(prompt.tools) if prompt.tools else [],
        )


# ── pacing ────────────────────────────────────────────────────────────────────────────────────
# Adapts the number of active episodes of a node to the load of its engine, while the block runs.

log = get_logger()

MEASURE_S = 2.0
"""Seconds between two measurements: a few decode steps of many requests, and a fraction of what is averaged over."""


def adapt(episodes: Episodes, engine: MeasuredEngine, concurrency: Concurrency, now_s: float) -> None:
    """Measure the engine's load once, and change the number of active episodes, unless the engine cannot tell it."""
    load, gate = engine.measure(), episodes.gate
    if load is None:
        return
    needed = episodes.num_active_tokens / load.kv_tokens if load.kv_tokens else 0.0
    limit = concurrency.observe(load, now_s, needed=needed, is_binding=gate.num_waiting > 0)
    if limit != gate.limit:
        log.debug("episodes.limit", limit=limit, before=gate.limit, kv_usage=load.kv_usage, needed=needed)
        gate.allow(limit)


@asynccontextmanager
async def paced(
    episodes: Episodes,
    engine: object,
    slots: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[None]:
    """Adapt while the block runs; an engine that cannot be measured leaves all episodes active."""
    if not isinstance(engine, MeasuredEngine) or engine.measure() is None:
        yield
        return
    concurrency = Concurrency(slots, episodes.gate.limit)
    episodes.gate.allow(concurrency.limit)

    async def follow() -> None:
        while True:
            await sleep(MEASURE_S)
            adapt(episodes, engine, concurrency, clock())

    following = asyncio.create_task(follow(), name="pacing of episodes")
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait([following])
