"""An episode of a rollout, from its prompt to the contents of a trajectory."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import structs

from asyncrl.config.sections.environment import Environment
from asyncrl.engine import Completion, Request
from asyncrl.episodes.environment import Answer, Score, TaskInput
from asyncrl.episodes.episode import ATTEMPTS, Episode
from asyncrl.episodes.episodes import Episodes
from asyncrl.episodes.gateway import chat
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.episodes.gateway.request import RefusedRequest, Wishes
from asyncrl.episodes.record import SampledTrajectory
from asyncrl.errors import EngineError, EnvironmentFailed
from asyncrl.messages.trajectory import FROM_NOTHING, Prompt, Sampling, Unit
from tests.episodes.stage import Counter, StagedEnvironments, StagedEpisode, WordBoundary, WordEngine, ids, words

UNIT = Unit(3, 1)
ENVIRONMENT = Environment(function="till.py:Till", max_turns=8, max_tokens=100)


def count(before: str) -> str:
    """Policy: how many turns it has had, and the number of words it has read."""
    return f"turn {before.split().count('<policy>')} after {len(before.split())}"


@dataclass
class Stage:
    environments: StagedEnvironments = field(default_factory=StagedEnvironments)
    engine: WordEngine = field(default_factory=lambda: WordEngine(count))
    environment: Environment = ENVIRONMENT
    started_over: list[tuple[int, str]] = field(default_factory=list)
    num_turns: int = 0

    def begin(self, answer: str = "3", prefix: SampledTrajectory | None = None, max_tokens: int = 10) -> Episode:
        episodes = Episodes(self.environment, self.environments, WordBoundary(), run="run")

        def has_turn() -> None:
            self.num_turns += 1

        return episodes.begin(
            UNIT,
            Prompt(text="how many", answer=answer),
            ids("how many <policy>"),
            sample=self.engine.sample,
            written=self.engine.written,
            sampling=Sampling(max_tokens=max_tokens),
            seed=7,
            prefix=prefix,
            on_turn=has_turn,
            on_started_over=lambda num_tokens, reason: self.started_over.append((num_tokens, reason)),
        )


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await scene()

    asyncio.run(main())


async def turns_of_the_loop(number: int = 20) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def text(sampled: SampledTrajectory) -> list[tuple[str, str]]:
    return [(turn.observation, turn.text) for turn in sampled.turns]


WHOLE = [
    ("", "turn 1 after 3"),
    ("<tool> left 2 <policy>", "turn 2 after 11"),
    ("<tool> left 1 <policy>", "turn 3 after 19"),
]


def test_an_episode_is_every_turn_with_what_the_environment_said_before_it() -> None:
    async def scene() -> None:
        stage = Stage()
        sampled = await stage.begin().run()
        assert text(sampled) == WHOLE
        assert sampled.completion.finish_reason == "stop"
        assert words(sampled.completion.completion_ids) == " ".join(written for _, written in WHOLE)
        assert words(sampled.context_ids) == "<tool> left 2 <policy> <tool> left 1 <policy>"
        assert [turn.parent for turn in sampled.turns] == [-1, 0, 1]
        assert [turn.reward for turn in sampled.turns] == [1.0, 1.0, 1.0]
        assert (sampled.scores, sampled.text) == ({"correct": 1.0}, "turn 3 after 19")
        assert stage.num_turns == 3
        (environment,) = stage.environments.opened
        assert environment.is_closed
        assert environment.name == "run/train/3/1"

    play(scene)


def test_a_turn_reads_exactly_the_ids_of_the_turns_before_it() -> None:
    async def scene() -> None:
        stage = Stage()
        sampled = await stage.begin().run()
        read = [*stage.engine.requests[1].prompt_ids, *sampled.completion.completion_ids[4:8]]
        assert stage.engine.requests[2].prompt_ids == [*read, *ids("<tool> left 1 <policy>")]
        assert len({request.seed for request in stage.engine.requests}) == 3, "every turn draws with a seed of its own"

    play(scene)


def test_the_limit_of_turns_ends_an_episode_that_is_still_judged() -> None:
    async def scene() -> None:
        stage = Stage(environment=structs.replace(ENVIRONMENT, max_turns=2))
        sampled = await stage.begin().run()
        assert (len(sampled.turns), sampled.completion.finish_reason) == (2, "length")
        assert sampled.scores == {"correct": 0.0}

    play(scene)


def test_the_limit_of_tokens_counts_those_of_the_environment_and_cuts_the_last_turn() -> None:
    async def scene() -> None:
        stage = Stage(environment=structs.replace(ENVIRONMENT, max_tokens=10))
        sampled = await stage.begin().run()
        assert text(sampled) == [("", "turn 1 after 3"), ("<tool> left 2 <policy>", "turn 2")]
        assert sampled.completion.finish_reason == "length"

    play(scene)


def test_an_episode_that_takes_too_long_is_cut_there_and_judged() -> None:
    async def scene() -> None:
        stage = Stage(StagedEnvironments(hang_at=3), environment=structs.replace(ENVIRONMENT, episode_s=0.05))
        sampled = await stage.begin().run()
        assert (text(sampled), sampled.completion.finish_reason) == (WHOLE[:2], "length")

    play(scene)


def test_a_fault_of_the_environment_fails_the_episode_and_closes_it() -> None:
    async def scene() -> None:
        stage = Stage(StagedEnvironments(fail_at=2))
        with pytest.raises(EnvironmentFailed, match="ValueError"):
            await stage.begin().run()
        await stage.environments.aclose()

    play(scene)


@pytest.mark.parametrize("resume", ["replay", "snapshot"])
@pytest.mark.parametrize("lose_at", range(1, 7))
def test_an_episode_goes_on_with_another_worker_if_its_own_is_lost(resume, lose_at: int) -> None:
    async def scene() -> None:
        stage = Stage(StagedEnvironments(resume=resume, lose_at=lose_at))
        sampled = await stage.begin().run()
        assert text(sampled) == WHOLE
        assert len(stage.engine.requests) == 3, "no turn is sampled twice"
        assert len(stage.environments.opened) == 1 + (stage.environments.num_calls >= lose_at)
        assert not stage.started_over
        if resume == "snapshot" and lose_at > 3:
            assert "reset" not in stage.environments.opened[1].calls
        await stage.environments.aclose()

    play(scene)


@pytest.mark.parametrize("resume", ["replay", "snapshot"])
@pytest.mark.parametrize("lose_at", range(1, 7))
def test_a_conversation_that_is_rendered_again_goes_on_as_if_no_worker_was_lost(resume, lose_at: int) -> None:
    async def scene() -> None:
        as_template = structs.replace(ENVIRONMENT, history="as_template", max_tokens=200)
        whole = await Stage(StagedEnvironments(resume=resume), environment=as_template).begin().run()
        assert [turn.parent for turn in whole.turns] == [-1, FROM_NOTHING, FROM_NOTHING], "each turn is rendered again"
        stage = Stage(StagedEnvironments(resume=resume, lose_at=lose_at), environment=as_template)
        sampled = await stage.begin().run()
        assert [(turn.parent, turn.observation, turn.text) for turn in sampled.turns] == [
            (turn.parent, turn.observation, turn.text) for turn in whole.turns
        ]
        assert len(stage.engine.requests) == 3, "no turn is sampled twice"
        assert not stage.started_over

    play(scene)


def test_an_episode_without_a_way_to_continue_begins_anew_and_says_so() -> None:
    async def scene() -> None:
        stage = Stage(StagedEnvironments(resume="none", lose_at=3))
        sampled = await stage.begin().run()
        assert text(sampled) == WHOLE
        assert len(stage.engine.requests) == 5
        assert stage.started_over == [
            (8, "run/train/3/1: the environment declares no way to continue an episode"),
        ]

    play(scene)


def test_workers_that_are_lost_again_and_again_fail_the_episode() -> None:
    class Lost(Counter):
        def step(self, said):
            raise EnvironmentFailed("its worker was lost", is_lost=True)

    async def scene() -> None:
        stage = Stage(StagedEnvironments(make=Lost))
        with pytest.raises(EnvironmentFailed, match="lost"):
            await stage.begin().run()
        assert len(stage.environments.opened) == ATTEMPTS

    play(scene)


@pytest.mark.parametrize("resume", ["replay", "snapshot"])
@pytest.mark.parametrize("num_turns", [0, 1, 2])
@pytest.mark.parametrize("hold_after", [None, 0, 2])
def test_another_node_continues_from_what_was_stored(resume, num_turns: int, hold_after: int | None) -> None:
    async def scene() -> None:
        first = Stage(StagedEnvironments(resume=resume, hang_at=0 if hold_after is not None else num_turns + 2))
        first.engine.version = 4
        episode = first.begin()
        running = asyncio.create_task(episode.run())
        if hold_after is not None:
            first.engine.hold_from, first.engine.hold_after = num_turns, hold_after
        await turns_of_the_loop(60)
        stored = episode.written()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if stored is None:
            assert (num_turns, bool(hold_after)) == (0, False)
            return

        second = Stage(StagedEnvironments(resume=resume))
        second.engine.version = 5
        sampled = await second.begin(prefix=stored).run()
        kept = len(stored.completion.completion_ids)
        assert text(sampled) == WHOLE
        assert sampled.completion.completion_ids[:kept] == stored.completion.completion_ids
        versions = [(span.policy_version, span.end) for span in sampled.completion.spans]
        assert versions == ([(4, 12)] if kept == 12 else [(4, kept), (5, 12)])
        assert not second.started_over

    play(scene)


def test_an_environment_that_answers_otherwise_is_not_continued() -> None:
    class Drifting(Counter):
        def step(self, said):
            answer = super().step(said)
            return Answer(messages=[{"role": "tool", "content": "other"}], reward=1.0, done=answer.done)

    async def scene() -> None:
        first = Stage(StagedEnvironments(hang_at=4))
        episode = first.begin()
        running = asyncio.create_task(episode.run())
        await turns_of_the_loop(60)
        stored = episode.written()
        assert stored is not None
        running.cancel()

        second = Stage(StagedEnvironments(make=Drifting))
        sampled = await second.begin(prefix=stored).run()
        assert "other" in words(sampled.context_ids)
        ((num_tokens, reason),) = second.started_over
        assert num_tokens == len(stored.completion.completion_ids)
        assert reason.startswith("run/train/3/1: its answer has")

    play(scene)


def test_a_restart_begins_a_context_that_follows_nothing() -> None:
    class Summarising(Counter):
        def step(self, said):
            answer = super().step(said)
            return structs.replace(answer, restart=self.left == 1)

    async def scene() -> None:
        sampled = await Stage(StagedEnvironments(make=Summarising)).begin().run()
        assert [turn.parent for turn in sampled.turns] == [-1, 0, FROM_NOTHING]
        assert sampled.turns[2].text == "turn 1 after 4", "the policy reads nothing else"

    play(scene)


def test_messages_of_reset_follow_the_prompt() -> None:
    class Greeting(Counter):
        def reset(self, task):
            super().reset(task)
            return Answer(messages=[{"role": "user", "content": "go"}])

    async def scene() -> None:
        sampled = await Stage(StagedEnvironments(make=Greeting)).begin("1").run()
        assert text(sampled) == [("<user> how many <user> go <policy>", "turn 1 after 6")]

    play(scene)


def test_a_score_replaces_the_sum_of_the_rewards_at_the_last_turn() -> None:
    class Judging(Counter):
        def score(self):
            return structs.replace(super().score(), reward=0.25)

    async def scene() -> None:
        sampled = await Stage(StagedEnvironments(make=Judging)).begin().run()
        assert [turn.reward for turn in sampled.turns] == [1.0, 1.0, -1.75]

    play(scene)


# ── test program ──────────────────────────────────────────────────────────────────────────────
# An episode whose turns an agent program asks for.

ENVIRONMENT_PROGRAM = Environment(function="agent.py:solve", max_turns=8, max_tokens=100)
PROMPT = [{"role": "user", "content": "how many"}]
Ask = Callable[..., Awaitable[dict[str, Any]]]
"""Asks for the turn that follows these messages."""


def program(gateway: Gateway, solve: Callable[[Ask, TaskInput], Awaitable[Score]], keys: list[str]) -> Any:
    """Class of environments whose episodes run ``solve``; the key of each is added to ``keys``."""

    class Solving(StagedEpisode):
        async def solve(self, task: TaskInput, base_url: str, key: str) -> Score:
            keys.append(key)
            episode = gateway.find(key)
            assert episode is not None

            async def ask(*messages: dict[str, Any]) -> dict[str, Any]:
                body = json.dumps({"model": "policy", "messages": [*PROMPT, *messages]}).encode()
                reply = await asyncio.shield(episode.reply(chat.read(body, Wishes())))
                episode.was_delivered(reply)
                return dict(reply.choices[0].message)

            return await solve(ask, task)

    return Solving


class Programs(StagedEnvironments):
    episode: Any = StagedEpisode

    def open(self, name: str) -> StagedEpisode:
        self.opened.append(self.episode(self, name))
        return self.opened[-1]


class StageProgram:
    def __init__(
        self, solve: Callable[[Ask, TaskInput], Awaitable[Score]], policy: Callable[[str], str], **limits: int
    ) -> None:
        self.gateway = Gateway("http://127.0.0.1:1")
        self.environments = Programs(resume="rerun")
        self._keys: list[str] = []
        self.environments.episode = program(self.gateway, solve, self._keys)
        self.engine = WordEngine(policy)
        environment = structs.replace(ENVIRONMENT_PROGRAM, **limits)
        self.episodes = Episodes(environment, self.environments, WordBoundary(), run="run", gateway=self.gateway)

    def put(self, score: Score) -> None:
        """Put the program's word, as it does by HTTP."""
        episode = self.gateway.find(self._keys[-1])
        assert episode is not None
        episode.score = score

    def begin(self, prefix: Any = None) -> Episode:
        return self.episodes.begin(
            Unit(0, 1),
            Prompt(chat=PROMPT, answer="3"),
            ids("<user> how many <policy>"),
            sample=self.engine.sample,
            written=self.engine.written,
            sampling=Sampling(10),
            seed=1,
            prefix=prefix,
        )


def numbered(before: str) -> str:
    return f"turn {before.split().count('<policy>')}"


async def three_turns(ask: Ask, task: TaskInput) -> Score:
    messages: list[dict[str, Any]] = []
    for number in range(3):
        messages += [await ask(*messages), {"role": "user", "content": f"more {number}"}]
    return Score(reward=2.0, metrics={"steps": 3.0})


def run(scene: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await scene()

    asyncio.run(main())


def test_the_turns_of_a_program_are_those_of_one_branch_with_its_reward_at_the_end() -> None:
    async def scene() -> None:
        sampled = await StageProgram(three_turns, numbered).begin().run()
        assert [(turn.parent, turn.text) for turn in sampled.turns] == [(-1, "turn 1"), (0, "turn 2"), (1, "turn 3")]
        assert [turn.reward for turn in sampled.turns] == [0.0, 0.0, 2.0]
        assert all(turn.is_trained for turn in sampled.turns)
        assert sampled.scores["steps"] == 3.0
        assert words(sampled.context_ids) == "<user> more 0 <policy> <user> more 1 <policy>"

    run(scene)


def test_a_program_that_runs_again_gets_its_recorded_turns_and_samples_the_rest() -> None:
    async def scene() -> None:
        first = StageProgram(three_turns, numbered)
        first.engine.hold_from, first.engine.hold_after = 2, 1
        episode = first.begin()
        running = asyncio.create_task(episode.run())
        while len(first.engine.requests) < 3:
            await asyncio.sleep(0)
        stored = episode.written()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert stored is not None
        assert [turn.text for turn in stored.turns] == ["turn 1", "turn 2", ""]

        second = StageProgram(three_turns, numbered)
        sampled = await second.begin(stored).run()
        assert [turn.text for turn in sampled.turns] == ["turn 1", "turn 2", "turn 3"]
        (request,) = second.engine.requests
        assert request.resume_from is not None
        assert words(request.resume_from.completion_ids) == "turn"

    run(scene)


def test_a_program_that_asks_for_nothing_has_failed() -> None:
    async def nothing(ask: Ask, task: TaskInput) -> Score:
        return Score(reward=1.0)

    async def scene() -> None:
        with pytest.raises(EnvironmentFailed, match="without asking for a turn"):
            await StageProgram(nothing, numbered).begin().run()

    run(scene)


async def until_it_is_refused(ask: Ask, task: TaskInput) -> Score:
    messages: list[dict[str, Any]] = []
    try:
        while True:
            messages += [await ask(*messages), {"role": "user", "content": "more"}]
    except RefusedRequest as error:
        raise EnvironmentFailed(f"openai.BadRequestError: {error}") from error


@pytest.mark.parametrize("limits", [{"max_turns": 3}, {"max_tokens": 14}], ids=["turns", "tokens"])
def test_a_program_that_a_limit_ends_is_an_episode_of_that_length_with_the_reward_that_it_had_put(limits) -> None:
    async def putting(ask: Ask, task: TaskInput) -> Score:
        stage.put(Score(reward=0.5, metrics={"steps": 3.0}))
        return await until_it_is_refused(ask, task)

    async def scene() -> None:
        sampled = await stage.begin().run()
        assert [turn.text for turn in sampled.turns] == ["turn 1", "turn 2", "turn 3"]
        assert sampled.completion.finish_reason == "length"
        assert [turn.reward for turn in sampled.turns] == [0.0, 0.0, 0.5]
        assert sampled.scores["steps"] == 3.0

    stage = StageProgram(putting, numbered, **limits)
    run(scene)


@pytest.mark.parametrize("limits", [{"max_turns": 3}, {"max_tokens": 14}], ids=["turns", "tokens"])
def test_a_program_that_asks_the_same_again_and_again_at_a_limit_is_ended(limits) -> None:
    refused: list[str] = []

    async def obstinate(ask: Ask, task: TaskInput) -> Score:
        stage.put(Score(reward=0.5))
        messages: list[dict[str, Any]] = []
        while True:
            try:
                messages += [await ask(*messages), {"role": "user", "content": "more"}]
            except RefusedRequest as error:
                refused.append(error.code)

    async def scene() -> None:
        sampled = await stage.begin().run()
        assert [turn.text for turn in sampled.turns] == ["turn 1", "turn 2", "turn 3"]
        assert sampled.completion.finish_reason == "length"
        assert [turn.reward for turn in sampled.turns] == [0.0, 0.0, 0.5]

    stage = StageProgram(obstinate, numbered, **limits)
    run(scene)
    assert len(refused) <= 3


def test_a_program_that_asks_in_vain_before_its_first_turn_has_failed() -> None:
    async def obstinate(ask: Ask, task: TaskInput) -> Score:
        while True:
            with suppress(RefusedRequest):
                await ask({"role": "user", "content": "many words " * 1000})

    async def scene() -> None:
        with pytest.raises(EnvironmentFailed, match="ended without asking for a turn"):
            await StageProgram(obstinate, numbered).begin().run()

    run(scene)


def test_a_program_whose_branches_are_refused_together_goes_on_to_its_end() -> None:
    async def branching(ask: Ask, task: TaskInput) -> Score:
        first = await ask()
        more = {"role": "user", "content": "more"}
        ended = await asyncio.gather(*(ask(first, more) for _ in range(8)), return_exceptions=True)
        assert sum(isinstance(one, RefusedRequest) for one in ended) == 8
        return Score(reward=1.0)

    async def scene() -> None:
        sampled = await StageProgram(branching, numbered, max_turns=1).begin().run()
        assert sampled.completion.finish_reason == "length"
        assert [turn.reward for turn in sampled.turns] == [1.0]

    run(scene)


def test_a_program_that_fails_before_any_limit_has_failed() -> None:
    async def failing(ask: Ask, task: TaskInput) -> Score:
        await ask()
        raise EnvironmentFailed("exit code 1: ZeroDivisionError")

    async def scene() -> None:
        with pytest.raises(EnvironmentFailed, match="ZeroDivisionError"):
            await StageProgram(failing, numbered).begin().run()

    run(scene)


def test_a_program_that_fails_for_a_turn_that_was_cut_is_an_episode_of_that_length() -> None:
    async def strict(ask: Ask, task: TaskInput) -> Score:
        await ask()
        stage.put(Score(reward=0.25))
        raise EnvironmentFailed("exit code 1: the response is incomplete")

    async def scene() -> None:
        sampled = await stage.begin().run()
        assert [turn.text for turn in sampled.turns] == ["on and " * 4 + "on and"]
        assert sampled.completion.finish_reason == "length"
        assert [turn.reward for turn in sampled.turns] == [0.25]

    stage = StageProgram(strict, lambda _: "on and " * 6)
    run(scene)


@pytest.mark.parametrize(
    ("score", "cause"),
    [
        (Score(metrics={"forks": 1.0}), "a metric 'forks', which the gateway counts itself"),
        (Score(metrics={f"m{number}": 1.0 for number in range(61)}), "there are 71 metrics"),
        (Score(reward=1e30), r"the reward is 1e\+30"),
    ],
)
def test_a_score_that_cannot_be_trained_names_its_cause_and_is_not_tried_again(score: Score, cause: str) -> None:
    async def scoring(ask: Ask, task: TaskInput) -> Score:
        await ask()
        return score

    async def scene() -> None:
        with pytest.raises(EnvironmentFailed, match=cause) as raised:
            await StageProgram(scoring, numbered).begin().run()
        assert not raised.value.retryable

    run(scene)


@pytest.mark.parametrize("num_turns", [0, 1])
def test_a_failure_tells_whether_the_policy_had_written(num_turns: int) -> None:
    async def failing(ask: Ask, task: TaskInput) -> Score:
        for _ in range(num_turns):
            await ask()
        raise EnvironmentFailed("environment.command ended with exit code 1: no JSON")

    async def scene() -> None:
        with pytest.raises(EnvironmentFailed, match="ended with exit code 1: no JSON") as raised:
            await StageProgram(failing, numbered).begin().run()
        assert str(raised.value).startswith("after a turn of the policy, ") == bool(num_turns)
        assert raised.value.retryable

    run(scene)


def test_a_program_that_fails_because_the_engine_did_is_not_to_blame() -> None:
    async def helpless(ask: Ask, task: TaskInput) -> Score:
        try:
            await ask()
        except Exception as error:
            raise EnvironmentFailed("exit code 1") from error
        return Score()

    async def broken(request: Request) -> Completion:
        raise EngineError("out of memory")

    async def scene() -> None:
        stage = StageProgram(helpless, numbered)
        stage.engine.sample = broken  # type: ignore[method-assign]
        with pytest.raises(EngineError, match="out of memory") as raised:
            await stage.begin().run()
        assert not isinstance(raised.value, EnvironmentFailed)

    run(scene)


def test_nobody_finds_an_episode_that_has_ended() -> None:
    async def scene() -> None:
        keys: list[str] = []
        stage = StageProgram(three_turns, numbered)
        solve = stage.environments.episode.solve

        async def noting(self: Any, task: TaskInput, base_url: str, key: str) -> Score:
            keys.append(key)
            return await solve(self, task, base_url, key)

        stage.environments.episode.solve = noting
        await stage.begin().run()
        assert stage.gateway.find(keys[0]) is None

    run(scene)
