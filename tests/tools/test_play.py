"""From options to a configuration and a prompt, and one episode in the terminal, with an engine of the stage."""

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from asyncrl.config.config import Config
from asyncrl.episodes.episodes import Episodes
from asyncrl.errors import ConfigError, EngineError
from asyncrl.messages.trajectory import FROM_PROMPT, Turn
from asyncrl.tools import play as module
from asyncrl.tools.play import (
    Watcher,
    end_lines,
    play,
    prompt_lines,
    reward_line,
    row_prompts,
    text_prompt,
    try_config,
    turn_lines,
)
from tests.episodes.stage import StagedEnvironments, WordBoundary
from tests.runtime.test_offline import Words, turn

RUN = """
[model]
path = "base"
[data]
train = "train.parquet"
[sampling]
max_tokens = 9
temperature = 0.7
top_k = 20
replay_mask = true
[rollout]
episodes = 64
[environment]
function = "boxes.py:Boxes"
options = { swapped = true }
max_turns = 5
workers = 4
[reward]
function = "episode"
[checkpoint]
every_steps = 5
keep_best = true
[evaluation]
every_versions = 5
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return path


def test_an_environment_and_a_model_are_enough() -> None:
    config = try_config("boxes.py:Boxes", model="m", seed=5)
    assert (config.environment.function, config.model.path, config.run.seed) == ("boxes.py:Boxes", "m", 5)
    assert config.reward.function == "episode"
    assert config.evaluation.sampling(config.sampling).temperature == 1.0


def test_tools_may_take_the_place_of_an_environment() -> None:
    config = try_config(model="m", tools=["calculator", "python"])
    assert (config.environment.function, config.environment.tools) == ("", ["calculator", "python"])
    assert config.reward.function == "auto"


def test_an_episode_of_a_run_file_is_sampled_as_in_training(run_file: Path) -> None:
    config = try_config(path=run_file)
    sampling = config.evaluation.sampling(config.sampling)
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (0.7, 20, 9)
    assert (config.environment.max_turns, config.environment.options) == (5, {"swapped": True})
    assert (config.environment.workers, config.rollout.episodes) == (1, 0)


def test_greedy_takes_the_likeliest_tokens(run_file: Path) -> None:
    evaluation = try_config(path=run_file, greedy=True).evaluation
    assert (evaluation.temperature, evaluation.top_k) == (0.0, 0)


def test_another_environment_keeps_the_limits_of_the_run_file(run_file: Path) -> None:
    environment = try_config("other.py:Other", run_file).environment
    assert (environment.function, environment.options, environment.max_turns) == ("other.py:Other", {}, 5)


def test_set_has_the_last_word(run_file: Path) -> None:
    config = try_config(path=run_file, overrides=["environment.max_turns=3", "rollout.slots=2"])
    assert (config.environment.max_turns, config.rollout.slots) == (3, 2)


def test_what_is_missing_is_named(run_file: Path) -> None:
    with pytest.raises(ConfigError, match="no model to play with"):
        try_config("boxes.py:Boxes")
    with pytest.raises(ConfigError, match="no environment to play in"):
        try_config(model="m")
    with pytest.raises(ConfigError, match="are both set"):
        try_config("boxes.py:Boxes", model="m", tools=["python"])
    with pytest.raises(ConfigError, match="no prompt to begin with: give --prompt TEXT, --data FILE"):
        row_prompts(try_config("boxes.py:Boxes", model="m"), [0])


def test_a_prompt_is_a_row_of_the_data(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{number} + 1?", "answer": "?"}) + "\n" for number in range(3)))
    config = try_config("boxes.py:Boxes", model="m", data=str(data))
    assert [prompt.text for prompt, _ in row_prompts(config, [2, 0])] == ["2 + 1?", "0 + 1?"]
    with pytest.raises(ConfigError, match=r"--row is 3, expected 0 \.\. 2, a usable row of .*rows\.jsonl"):
        row_prompts(config, [0, 3])


def test_a_text_is_a_message_if_the_model_has_a_chat_template(tmp_path: Path) -> None:
    assert text_prompt(tmp_path, "2 + 2?", "4").text == "2 + 2?"
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    prompt = text_prompt(tmp_path, "2 + 2?", "4")
    assert (prompt.chat, prompt.answer) == ([{"role": "user", "content": "2 + 2?"}], "4")


# ── test lines ────────────────────────────────────────────────────────────────────────────────
# An episode in a terminal.

TURNS = [
    Turn(FROM_PROMPT, 0, 7, text="look"),
    Turn(0, 5, 3, observation="right 2", text="no"),
    Turn(0, 5, 3, reward=0.5, call_s=0.25, observation="left 2\nright 3", text="4"),
]


def test_a_turn_has_what_was_said_on_both_sides() -> None:
    assert [line.plain for line in turn_lines(TURNS, first=2)] == [
        "── turn 2, after 0 ── reward 0.5, 3 tokens after 5, 0.25 s",
        "environment  left 2",
        "             right 3",
        "policy       4",
    ]
    assert [line.plain for line in turn_lines(TURNS)][:2] == ["── turn 0 ── 7 tokens", "policy       look"]
    assert list(turn_lines(TURNS, first=3)) == []


def test_the_prompt_stands_before_the_turns() -> None:
    assert [line.plain for line in prompt_lines("How many?", "4")] == [
        "prompt       How many?",
        "answer       4",
    ]
    assert len(list(prompt_lines("How many?"))) == 1


def test_the_end_says_why_and_how_much() -> None:
    stopped, size = end_lines(TURNS, "stop")
    assert stopped.plain == "── stop: the environment, or the policy, ended it"
    assert size.plain.startswith("3 turns in 2 branches, 13 tokens of the policy and 10 of the environment")
    assert "environment.max_turns" in next(end_lines(TURNS, "length")).plain


def test_a_reward_line_equals_the_example() -> None:
    line = reward_line("the environment", 1.0, {"correct": 1.0, "moves": 7.0}).plain
    assert line in (reward_line.__doc__ or "")


def test_what_the_policy_writes_cannot_command_the_terminal() -> None:
    (_, policy) = turn_lines([Turn(FROM_PROMPT, 0, 1, text="\x1b[2Jgone [bold]")])
    assert policy.plain == "policy       \\x1b[2Jgone [bold]"


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

    monkeypatch.setattr("asyncrl.runtime.rollout.load_engine", lambda _: engine)
    monkeypatch.setattr("asyncrl.runtime.rollout.open_episodes", opened)
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
