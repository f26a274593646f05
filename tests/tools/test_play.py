"""One episode in the terminal, with an engine and an environment of the stage."""

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from asyncrl.config.config import Config
from asyncrl.episodes.episodes import Episodes
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import FROM_PROMPT, Turn
from asyncrl.tools import play as module
from asyncrl.tools.play import Watcher, play, try_config
from tests.episodes.stage import StagedEnvironments, WordBoundary
from tests.runtime.test_offline import Words, turn


def test_a_turn_is_shown_once_when_its_answer_is_there() -> None:
    said: list[Text] = []
    watcher = Watcher(said.append)
    turns = [Turn(FROM_PROMPT, 0, 1, text="look"), Turn(0, 1, 1, text="4")]
    watcher.show(turns[:1])
    assert said == []
    watcher.show(turns)
    watcher.show(turns)
    assert [line.plain for line in said] == ["── turn 0 ── 1 token", "policy       look"]
    watcher.show(turns, are_all=True)
    assert [line.plain for line in said[2:]] == ["── turn 1 ── 1 token after 1", "policy       4"]


class Closing(Words):
    async def aclose(self) -> None:
        self.closed = True


@pytest.fixture
def environments() -> StagedEnvironments:
    return StagedEnvironments()


@pytest.fixture
def engine(environments: StagedEnvironments, monkeypatch: pytest.MonkeyPatch) -> Closing:
    engine = Closing(turn)

    @asynccontextmanager
    async def opened(config: Config, _engine: Any, *, run_id: str, **_: object) -> AsyncIterator[Episodes]:
        yield Episodes(config.environment, environments, WordBoundary(), run=run_id)

    monkeypatch.setattr(module, "load_engine", lambda _: engine)
    monkeypatch.setattr(module, "open_episodes", opened)
    for name in ("check_model", "check_model_reads"):
        monkeypatch.setattr(module, name, lambda *_, **__: None)
    return engine


def played(model: Path, *overrides: str) -> list[str]:
    written = io.StringIO()
    config = try_config("till.py:Till", model=str(model), overrides=overrides)
    play(config, Console(file=written, width=200), text="how many", answer="2")
    return written.getvalue().splitlines()


def test_an_episode_is_shown_from_prompt_to_reward(engine: Closing, tmp_path: Path) -> None:
    lines = played(tmp_path)
    assert lines[:4] == ["prompt       how many", "answer       2", lines[2], "policy       turn 1"]
    assert lines[2].startswith("── turn 0 ── reward 1, 2 tokens")
    assert lines[-1] == "reward of the environment 2, correct 1"
    assert lines[-3] == "── stop: the environment, or the policy, ended it"
    assert engine.closed


def test_the_reward_of_the_run_is_shown_beside_the_environments(engine: Closing, tmp_path: Path) -> None:
    lines = played(tmp_path, "reward.function=exact")
    assert lines[-2:] == ["reward of the environment 2, correct 1", "reward of the run 0, correct 0"]


def test_an_environment_that_fails_is_an_error_with_its_cause(
    engine: Closing, environments: StagedEnvironments, tmp_path: Path
) -> None:
    environments.fail_at = 2
    with pytest.raises(EngineError, match="it raised ValueError"):
        played(tmp_path)
    assert engine.closed
