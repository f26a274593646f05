"""All that the episodes of one rollout share: environments, seam, limits."""

import zlib
from collections.abc import Callable
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from asyncrl.config.sections.environment import Environment
from asyncrl.environment.interface import EnvironmentEpisode, Environments, TaskInput
from asyncrl.messages.trajectory import Prompt, Sampling, Unit
from asyncrl.rollout.engine import Completion, ConversingEngine, Request
from asyncrl.rollout.episodes.conversation import Conversation, Sample
from asyncrl.rollout.episodes.episode import Attempt, Episode, Player
from asyncrl.rollout.episodes.gate import EpisodeGate
from asyncrl.rollout.episodes.program import AgentProgram
from asyncrl.rollout.episodes.record import EpisodeRecord
from asyncrl.rollout.episodes.resume import Resumed, read
from asyncrl.rollout.episodes.seam import Seam
from asyncrl.rollout.episodes.steps import Steps
from asyncrl.rollout.gateway.gateway import Gateway
from asyncrl.rollout.results import EpisodeLimits, Sampled

FOLD = 0x9E3779B1
"""2^32 divided by the golden ratio."""


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
        self._seams: dict[bool, Seam] = {}
        """Seams of chats (True) and of plain texts, each made and checked for the first prompt that needs it."""
        self._run = run
        self._gateway = gateway
        self.gate: EpisodeGate[Unit] = EpisodeGate(most)
        self._in_hand: WeakValueDictionary[Unit, Episode] = WeakValueDictionary()
        """The newest episode of each unit, as long as somebody plays it or means to."""
        self._description = environments.description
        self._tools = msgspec.json.encode(self._description.tools).decode() if self._description.tools else ""
        self.limits = EpisodeLimits(max_turns=config.max_turns, max_tokens=config.max_tokens)

    @property
    def num_active_tokens(self) -> int:
        """Tokens of all active episodes, which the KV cache would hold if it had room for them."""
        return sum(self._in_hand[unit].num_tokens for unit in self.gate.active if unit in self._in_hand)

    def shown(self, prompt: Prompt) -> Prompt:
        """The prompt as the policy reads it: with the tools of the environment."""
        return replace(prompt, tools=self._tools) if self._tools else prompt

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
        prefix: Sampled | None = None,
        on_turn: Callable[[], None] = lambda: None,
        on_started_over: Callable[[int, str], None] = lambda num_tokens, reason: None,
    ) -> Episode:
        """
        The episode of a unit, not yet playing.

        Args:
            sample: Samples one turn.
            written: Tokens of a running request so far.
            prefix: What another node has stored of it.
        """
        task = self._task(unit, prompt, seed)
        seam = self._seam(is_chat=bool(prompt.chat))

        async def seated(request: Request) -> Completion:
            async with self.gate.turn(unit):
                return await sample(request)

        def converse(environment: EnvironmentEpisode, resumed: Resumed | None) -> Attempt:
            answered = resumed.finished[: resumed.state.num_answered] if resumed else []
            conversation = Conversation(
                EpisodeRecord(prompt_ids, answered),
                seated,
                seam,
                sampling=sampling,
                limits=self.limits,
                seed=seed,
                priority=priority,
                images=images,
                on_turn=on_turn,
            )
            player = self._player(conversation, environment, task, resumed)
            return Attempt(conversation, player)

        self._in_hand[unit] = episode = Episode(
            self._environments,
            task,
            prompt_ids,
            converse,
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
        self, conversation: Conversation, environment: EnvironmentEpisode, task: TaskInput, resumed: Resumed | None
    ) -> Player:
        if self._gateway:
            return AgentProgram(conversation, self._gateway, environment, task, tools=self._tools, resumed=resumed)
        return Steps(
            conversation,
            environment,
            task,
            resume=self._description.resume,
            tools=self._tools,
            history=self._config.history,
            resumed=resumed,
        )

    def _seam(self, *, is_chat: bool) -> Seam:
        if is_chat not in self._seams:
            parser = self._config.tool_parser
            self._seams[is_chat] = self._engine.seam(is_chat=is_chat, tools=self._tools, tool_parser=parser)
        return self._seams[is_chat]

    def _task(self, unit: Unit, prompt: Prompt, seed: int | None) -> TaskInput:
        name = f"{self._run}/{unit.split}/{unit.group_id}/{unit.index}"
        return TaskInput(
            messages=list(prompt.chat) or [{"role": "user", "content": prompt.text}],
            answer=prompt.answer,
            data_source=prompt.data_source,
            extra=prompt.extra,
            seed=zlib.crc32(name.encode()) if seed is None else in_32_bits(seed),
            name=name,
        )


def in_32_bits(seed: int) -> int:
    """
    Seed of an environment from one of sampling: what ``numpy.random.seed`` takes at most.

    Those of one run differ from each other, and runs with other seeds have other ones.
    """
    return (seed + (seed >> 32) * FOLD) % 2**32
