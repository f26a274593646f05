"""
One episode of a rollout: played to its end, judged by its environment, and continued where an earlier attempt ended.

    run ─▶ attempt ─▶ steps, or an agent program ─▶ score ─▶ close ─▶ contents of the trajectory
              ▲           │ worker lost: replay, restore, or begin anew
              └───────────┘
"""

import asyncio
import time
from collections.abc import Callable, Mapping

from asyncrl.engine import Completion, Request
from asyncrl.episodes.conversation import Conversation
from asyncrl.episodes.environment import EnvironmentDiverged, EnvironmentEpisode, Environments, Score, TaskInput
from asyncrl.episodes.gateway.episode import Counts
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.episodes.pictures import EpisodePictures
from asyncrl.episodes.record import (
    EpisodeRecord,
    EpisodeState,
    RecordedTurn,
    ResumedEpisode,
    SampledTrajectory,
    as_sampled,
)
from asyncrl.episodes.steps import EpisodeSteps, rewards_of
from asyncrl.episodes.tool_calls import opened_by
from asyncrl.errors import EngineError, EnvironmentFailed
from asyncrl.log import get_logger
from asyncrl.messages.trajectory import SEAT_METRICS
from asyncrl.messages.verdict_limits import problem_of
from asyncrl.messages.words import FinishReason
from asyncrl.records.failure_sentences import AFTER_A_TURN

log = get_logger()

ATTEMPTS = 4
"""Workers that an episode may lose without being to blame, before it is reported as failed."""


class Attempt:
    """A conversation, and the loop that plays it with one instance of the environment."""

    def __init__(self, conversation: Conversation, player: "EpisodeSteps | AgentProgram") -> None:
        self.conversation = conversation
        self.record = conversation.record
        self.player = player

    def begun(self, written: Callable[[Request], Completion | None]) -> list[RecordedTurn]:
        """Beginnings of the turns that the engine samples now."""
        return [
            turn.context.turn(completion, turn.draw)
            for turn in self.conversation.running
            if (completion := written(turn.request))
        ]

    async def finish(self, finish_reason: FinishReason) -> SampledTrajectory:
        """Contents of the finished trajectory, with the environment's word."""
        score, record, num_seats = await self.player.score(), self.record, self.conversation.limits.seats
        last = record.turns[-1]
        if score.reward is not None:
            wanted = rewards_of(score.reward, num_seats, "score")
            rewards = record.rewards
            for seat, place in record.lasts.items():
                record.turns[place].reward += wanted[seat] - rewards[seat]
        metrics = score.metrics | (seat_scores(record, num_seats, score.metrics) if num_seats > 1 else {})
        for reward in record.rewards.values():
            if problem := problem_of(reward, metrics, None):
                raise EnvironmentFailed(f"the episode cannot be trained: {problem}", retryable=False)
        return SampledTrajectory(
            prompt_ids=record.prompt_ids,
            completion=record.completion(finish_reason),
            text=last.text,
            opened=opened_by([*record.ids_through(last.parent), *last.context_ids], self.conversation.boundary.text),
            turns=record.wire_turns(),
            context_ids=record.context_ids(),
            scores=metrics,
            images=record.images(),
            image_files=record.image_files(self.conversation.pictures),
        )


SILENT = "silent_seats"
"""Metric of an episode of several seats: those that never spoke, and so have no reward."""


def seat_scores(record: EpisodeRecord, num_seats: int, given: Mapping[str, float]) -> dict[str, float]:
    """Rewards of the seats that spoke, and how many did not. Raises `EnvironmentFailed` if ``given`` has such names."""
    found = {SEAT_METRICS[seat]: reward for seat, reward in record.rewards.items()}
    found[SILENT] = float(num_seats - len(found))
    if taken := sorted(given.keys() & {SILENT, *SEAT_METRICS[:num_seats]}):
        problem = (
            f"the environment gives a metric {taken[0]!r}, which an episode of several seats has itself; rename it"
        )
        raise EnvironmentFailed(problem, retryable=False)
    return found


Begin = Callable[[EnvironmentEpisode, ResumedEpisode | None], Attempt]
"""Begins an attempt, from turns of an earlier one."""


class Episode:
    """
    The episode of one unit.

    Args:
        pictures: Those of the prompt.
        written: Tokens of a running request so far.
        resumed: Turns that another node stored; None begins anew.
        can_resume: False if the environment cannot be brought back to where a record ends.
        on_end: Called when it is played no more.
        on_started_over: Called with the number of the policy's tokens that are thrown away, and the reason.
    """

    def __init__(
        self,
        environments: Environments,
        task: TaskInput,
        prompt_ids: list[int],
        begin: Begin,
        *,
        pictures: EpisodePictures,
        written: Callable[[Request], Completion | None],
        episode_s: float,
        resumed: ResumedEpisode | None,
        can_resume: bool,
        on_started_over: Callable[[int, str], None],
        on_end: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environments = environments
        self._task = task
        self._prompt_ids = prompt_ids
        self._begin = begin
        self._pictures = pictures
        self._written = written
        self._episode_s = episode_s
        self._resumed = resumed
        self._can_resume = can_resume
        self._on_started_over = on_started_over
        self._on_end = on_end
        self._clock = clock
        self._attempt: Attempt | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and of the turns so far, without those that are being sampled."""
        return len(self._prompt_ids) + (self._attempt.record.num_tokens if self._attempt else 0)

    async def run(self) -> SampledTrajectory:
        """Play, with another worker if one is lost. Raises `EngineError`."""
        try:
            return await self._run()
        finally:
            self._on_end()

    async def _run(self) -> SampledTrajectory:
        until_s = self._clock() + self._episode_s
        lost = 0
        while True:
            if self._resumed and not self._can_resume:
                self._start_over("the environment declares no way to continue an episode")
            environment = self._environments.open(self._task.name)
            try:
                self._attempt = self._begin(environment, self._resumed)
                return await self._attempt.finish(await self._play(self._attempt, until_s))
            except EnvironmentFailed as error:
                lost += 1
                if not error.is_lost and self._attempt and self._attempt.record.turns:
                    raise EnvironmentFailed(f"{AFTER_A_TURN}{error}", retryable=error.retryable) from error
                if not error.is_lost or lost == ATTEMPTS:
                    raise
                self._resumed = self._in_hand()
            except EnvironmentDiverged as error:
                self._start_over(str(error))
            finally:
                await environment.close()

    def written(self) -> SampledTrajectory | None:
        """Unfinished contents so far; None before the first token."""
        if (in_hand := self._in_hand()) is None:
            return None
        record = EpisodeRecord(self._prompt_ids, in_hand.finished, self._pictures.prompt)
        return as_sampled(record, in_hand.begun, in_hand.state, self._pictures.with_shown(in_hand.shown))

    async def _play(self, attempt: Attempt, until_s: float) -> FinishReason:
        try:
            async with asyncio.timeout(max(0.0, until_s - self._clock())) as deadline:
                return await attempt.player.play()
        except TimeoutError:
            if not deadline.expired():
                raise
        if not attempt.record.turns:
            raise EnvironmentFailed(
                f"the episode took longer than environment.episode_s = {self._episode_s:g} s before the end of a turn"
            )
        return "length"

    def _in_hand(self) -> ResumedEpisode | None:
        """Turns so far, of this attempt or of the earlier one that it still replays."""
        attempt = self._attempt
        if attempt is None or attempt.player.is_replaying:
            return self._resumed
        begun = attempt.begun(self._written)
        if not (attempt.record.turns or begun):
            return None
        return ResumedEpisode(
            state=attempt.player.state,
            finished=list(attempt.record.turns),
            begun=begun,
            shown=attempt.conversation.pictures.shown,
        )

    def _start_over(self, reason: str) -> None:
        assert self._resumed is not None, "only an earlier attempt can be given up"
        self._on_started_over(self._resumed.num_tokens, f"{self._task.name}: {reason}")
        self._resumed = self._attempt = None


# ── program ───────────────────────────────────────────────────────────────────────────────────
# An episode whose turns an agent program asks for, as from an OpenAI server.


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
        resumed: ResumedEpisode | None = None,
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
        return bool(self._open.earlier.num_left) and not self._open.counts["sampled"]

    async def play(self) -> FinishReason:
        """
        Run the program to its end. One that fails at a limit has not failed: the reason is ``length``. One that asks
        the same again and again there is ended.

        Such a limit is that of the episode, for which a request was refused, or that of a turn: clients of some
        packages raise an error for a reply that was cut.

        Raises:
            EnvironmentFailed: It failed by itself, or ended without a turn.
            EngineError: It failed because the engine did.
        """
        turns = self._conversation.record.turns
        solving = asyncio.create_task(self._environment.solve(self._task, self._open.base_url, self._open.key))
        self._open.on_asked_in_vain = solving.cancel
        try:
            self._word = await solving
        except asyncio.CancelledError:
            if not self._open.is_asked_in_vain or _is_cancelled():
                raise
            log.info("episode.ended_in_vain", episode=self._task.name, limit=self._open.limit)
        except EnvironmentFailed as error:
            if isinstance(failure := self._open.failure, EngineError):
                raise failure from error
            was_cut = bool(turns) and turns[-1].completion.finish_reason == "length"
            if error.is_lost or not turns or not (self._open.limit or was_cut):
                raise
            limit = self._open.limit or "sampling.max_tokens"
            log.info("episode.ended_at_limit", episode=self._task.name, limit=limit, reason=str(error))
            return "length"
        finally:
            await self._open.close()
        if not turns:
            raise EnvironmentFailed(f"the agent program of {self._task.name} ended without asking for a turn")
        return "length" if self._open.limit else "stop"

    async def score(self) -> Score:
        """Score that the program sent to the gateway, or returned."""
        sent, own = self._open.score or Score(), self._open.counts.scores
        reward = self._word.reward if sent.reward is None else sent.reward
        metrics = self._word.metrics | sent.metrics
        if clash := Counts.clash_of(metrics):
            raise EnvironmentFailed(f"the program gives {clash}", retryable=False)
        return Score(reward=reward, metrics=metrics | own)


def _is_cancelled() -> bool:
    """True if the running task itself is cancelled, and not only one that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
