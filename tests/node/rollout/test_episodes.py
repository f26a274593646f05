"""The environments of a rollout's process."""

import asyncio
from pathlib import Path

import pytest

from asyncrl.config.config import Config
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import Prompt, Sampling, Span, Unit
from asyncrl.node.rollout.episodes import most_episodes, open_episodes
from asyncrl.rollout.engine import Completion, Engine, Request
from asyncrl.testing import FakeEngine
from tests.config.configs import made

TILL = """
from asyncrl.environment import Step

class Till:
    def reset(self, task):
        self.left = int(task.answer)

    def step(self, said):
        self.left -= 1
        return Step(messages=[{"role": "user", "content": "again"}], reward=1.0, done=self.left == 0)
"""


class TwoTokens(FakeEngine):
    async def generate(self, request: Request) -> Completion:
        return Completion(
            completion_ids=[7, 8],
            behavior_logprobs=[-0.5, -0.5],
            spans=[Span(0, 0, 2)],
            finish_reason="stop",
            generate_s=0.0,
        )


def config(folder: Path, **environment: object) -> Config:
    (folder / "till.py").write_text(TILL)
    return made(environment={"function": f"{folder}/till.py:Till", "workers": 1, **environment})


def play(config: Config, engine: Engine) -> list[int]:
    async def scene() -> list[int]:
        async with asyncio.timeout(60), open_episodes(config, engine, run_id="r", node="n", slots=4) as episodes:
            assert episodes is not None
            episode = episodes.begin(
                Unit(0, 0),
                Prompt(text="how many", answer="3"),
                [1, 2],
                sample=engine.generate,
                written=engine.written,
                sampling=Sampling(4),
                seed=1,
            )
            sampled = await episode.run()
            assert sum(turn.reward for turn in sampled.turns) == 3.0
            return [turn.parent for turn in sampled.turns]

    return asyncio.run(scene())


def test_an_episode_is_played_with_an_environment_in_a_process_of_its_own(tmp_path: Path) -> None:
    assert play(config(tmp_path), TwoTokens()) == [-1, 0, 1]


def test_an_environment_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Tall"):
        play(config(tmp_path, function=f"{tmp_path}/till.py:Tall"), TwoTokens())


def test_an_engine_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    class Mute:
        generate = written = None

    with pytest.raises(ConfigError, match="episodes of several turns need an engine"):
        play(config(tmp_path), Mute())  # type: ignore[arg-type]


def test_without_an_environment_there_are_no_episodes() -> None:
    async def scene() -> None:
        async with open_episodes(made(), FakeEngine(), run_id="r", node="n", slots=4) as episodes:
            assert episodes is None

    asyncio.run(scene())
    assert most_episodes(made(), 4) == 0


def test_twice_as_many_episodes_as_slots_are_in_hand_unless_set(tmp_path: Path) -> None:
    assert most_episodes(config(tmp_path), 4) == 8
    assert most_episodes(made(environment={"function": "a.py:A"}, rollout={"episodes": 5}), 4) == 5


def test_programs_are_four_for_each_core_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    command = {"command": ["agent"]}
    assert most_episodes(made(environment=command), 64) == 12
    assert most_episodes(made(environment=command), 2) == 4
    assert most_episodes(made(environment=command, rollout={"episodes": 50}), 2) == 50
