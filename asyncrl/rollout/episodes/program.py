"""An episode whose turns an agent program asks for, as from an OpenAI server."""

from msgspec import structs

from asyncrl.environment.interface import EnvironmentEpisode, Score, TaskInput
from asyncrl.errors import EngineError, EnvironmentFailed
from asyncrl.messages.words import FinishReason
from asyncrl.rollout.episodes.conversation import Conversation
from asyncrl.rollout.episodes.resume import EpisodeState, Resumed
from asyncrl.rollout.gateway.gateway import Gateway


class AgentProgram:
    """
    Runs the program once. With ``resumed`` it gets the recorded turns again, as long as it asks the same.

    Args:
        conversation: With an empty record.
        tools: JSON list of the tools that the prompt shows.
        resumed: Turns of an earlier run; None begins anew.
    """

    def __init__(
        self,
        conversation: Conversation,
        gateway: Gateway,
        environment: EnvironmentEpisode,
        task: TaskInput,
        *,
        tools: str = "",
        resumed: Resumed | None = None,
    ) -> None:
        self._conversation = conversation
        self._environment = environment
        self._task = task
        earlier = [*resumed.finished, *resumed.begun] if resumed else []
        conversation.reserve(earlier)
        self._open = gateway.open(conversation, task.messages, tools, earlier=earlier)
        self._word = Score()

    @property
    def state(self) -> EpisodeState:
        return EpisodeState(num_finished=len(self._conversation.record.turns))

    @property
    def is_replaying(self) -> bool:
        """True until the program has had all recorded turns, or asked for something else."""
        return bool(self._open.num_not_repeated) and not self._open.counts["sampled"]

    async def play(self) -> FinishReason:
        """
        Run the program to its end.

        Raises:
            EnvironmentFailed: It failed, or ended without a turn.
            EngineError: It failed because the engine did.
        """
        try:
            self._word = await self._environment.solve(self._task, self._open.base_url, self._open.key)
        except EnvironmentFailed as error:
            if isinstance(failure := self._open.failure, EngineError):
                raise failure from error
            raise
        finally:
            await self._open.close()
        if not self._conversation.record.turns:
            raise EnvironmentFailed(f"the agent program of {self._task.name} ended without asking for a turn")
        return "length" if self._open.limit else "stop"

    async def score(self) -> Score:
        """Score that the program sent to the gateway, or returned."""
        sent = self._open.score
        reward = sent.reward if sent and sent.reward is not None else self._word.reward
        return structs.replace(self._word, reward=reward, metrics=self._word.metrics | self._open.scores)
