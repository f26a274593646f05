"""An episode whose turns an agent program asks for."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncrl.config.sections.environment import Environment
from asyncrl.environment.interface import Score, TaskInput
from asyncrl.errors import EngineError, EnvironmentFailed
from asyncrl.messages.trajectory import Prompt, Sampling, Unit
from asyncrl.rollout.engine import Completion, Request
from asyncrl.rollout.episodes.episode import Episode
from asyncrl.rollout.episodes.episodes import Episodes
from asyncrl.rollout.gateway.chat_request import read_request
from asyncrl.rollout.gateway.gateway import Gateway
from tests.rollout.episodes.stage import StagedEnvironments, StagedEpisode, WordEngine, WordSeam, ids, words

ENVIRONMENT = Environment(function="agent.py:solve", max_turns=8, max_tokens=100)
PROMPT = [{"role": "user", "content": "how many"}]
Ask = Callable[..., Awaitable[dict[str, Any]]]
"""Asks for the turn that follows these messages."""


def program(gateway: Gateway, solve: Callable[[Ask, TaskInput], Awaitable[Score]]) -> Any:
    """Class of environments whose episodes run ``solve``."""

    class Solving(StagedEpisode):
        async def solve(self, task: TaskInput, base_url: str, key: str) -> Score:
            episode = gateway.find(key)
            assert episode is not None

            async def ask(*messages: dict[str, Any]) -> dict[str, Any]:
                body = json.dumps({"model": "policy", "messages": [*PROMPT, *messages]}).encode()
                reply = await asyncio.shield(episode.reply(read_request(body, stop=[])))
                episode.was_delivered(reply)
                return dict(reply.choices[0].message)

            return await solve(ask, task)

    return Solving


class Programs(StagedEnvironments):
    episode: Any = StagedEpisode

    def open(self, name: str) -> StagedEpisode:
        self.opened.append(self.episode(self, name))
        return self.opened[-1]


class Stage:
    def __init__(self, solve: Callable[[Ask, TaskInput], Awaitable[Score]], policy: Callable[[str], str]) -> None:
        self.gateway = Gateway("http://127.0.0.1:1")
        self.environments = Programs(resume="rerun")
        self.environments.episode = program(self.gateway, solve)
        self.engine = WordEngine(policy)
        self.episodes = Episodes(ENVIRONMENT, self.environments, WordSeam(), run="run", gateway=self.gateway)

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
        sampled = await Stage(three_turns, numbered).begin().run()
        assert [(turn.parent, turn.text) for turn in sampled.turns] == [(-1, "turn 1"), (0, "turn 2"), (1, "turn 3")]
        assert [turn.reward for turn in sampled.turns] == [0.0, 0.0, 2.0]
        assert all(turn.is_trained for turn in sampled.turns)
        assert sampled.scores["steps"] == 3.0
        assert words(sampled.context_ids) == "<user> more 0 <policy> <user> more 1 <policy>"

    run(scene)


def test_a_program_that_runs_again_gets_its_recorded_turns_and_samples_the_rest() -> None:
    async def scene() -> None:
        first = Stage(three_turns, numbered)
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

        second = Stage(three_turns, numbered)
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
            await Stage(nothing, numbered).begin().run()

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
        stage = Stage(helpless, numbered)
        stage.engine.sample = broken  # type: ignore[method-assign]
        with pytest.raises(EngineError, match="out of memory") as raised:
            await stage.begin().run()
        assert not isinstance(raised.value, EnvironmentFailed)

    run(scene)


def test_nobody_finds_an_episode_that_has_ended() -> None:
    async def scene() -> None:
        keys: list[str] = []
        stage = Stage(three_turns, numbered)
        solve = stage.environments.episode.solve

        async def noting(self: Any, task: TaskInput, base_url: str, key: str) -> Score:
            keys.append(key)
            return await solve(self, task, base_url, key)

        stage.environments.episode.solve = noting
        await stage.begin().run()
        assert stage.gateway.find(keys[0]) is None

    run(scene)
