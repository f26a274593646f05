"""Agent programs of real packages, each in its own interpreter, play hidden sums through the gateway."""

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

from asyncrl.config.sections.environment import Environment
from asyncrl.episodes.environment import Score, TaskInput
from asyncrl.episodes.gateway.app import serve
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.episodes.pool import Programs
from asyncrl.episodes.record import EpisodeLimits
from asyncrl.errors import EnvironmentFailed
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT
from tests.episodes.gateway.doubles import Episode, Policy, user

ROOT = Path(__file__).parents[2]
AGENTS = ROOT / "examples" / "agents"
PYTHON = os.environ.get("ASYNCRL_AGENTS_PYTHON") or str(ROOT / ".venv-agents" / "bin" / "python")
OPENENV = os.environ.get("ASYNCRL_OPENENV_PYTHON") or str(ROOT / ".venv-agents" / "openenv" / "bin" / "python")
FRAMEWORKS = os.environ.get("ASYNCRL_FRAMEWORKS_PYTHON") or str(ROOT / ".venv-agents" / "frameworks" / "bin" / "python")
QUESTION, AMOUNTS, ANSWER = "Tom a b c How many now?", "+5 -3 +4", "6"
PROCEDURE = [" a ?", "0+5 !", " b ?", "5-3 !", " c ?", "2+4 !", " #### 6"]
TASK = TaskInput(
    messages=[user(QUESTION)], answer=ANSWER, extra={"amounts": AMOUNTS}, seed=1, name="run/train/0/0"
)  # fmt: skip


def called(name: str, arguments: Mapping[str, object]) -> str:
    """A call of a tool as the policy writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def play(python: str, arguments: Sequence[str], task: TaskInput, policy: Policy, *, max_turns: int = 1000) -> Episode:
    """The episode of a program, which may end at a limit. Skips the test without the interpreter."""
    if not Path(python).exists():
        pytest.skip(f"needs {python}: run bin/venv-agents")
    program, *options = arguments
    command = [python, str(AGENTS / program), *options]
    gateway = Gateway()
    limits = EpisodeLimits(max_turns=max_turns, max_tokens=1_000_000)

    async def played() -> Episode:
        programs = Programs(Environment(command=command), "run")
        async with asyncio.timeout(280), serve(gateway, "tcp://127.0.0.1:0"):
            episode = Episode(policy, task.messages, gateway=gateway, limits=limits, max_tokens=4000)
            try:
                await programs.open(task.name).solve(task, episode.open.base_url, episode.open.key)
            except EnvironmentFailed:
                if not episode.open.limit:
                    raise
            finally:
                await programs.aclose()
            return episode

    return asyncio.run(played())


def saying(turns: Iterable[str]) -> Policy:
    """A policy that says these turns, whatever it reads."""
    left = iter(turns)
    return lambda _: next(left)


def looks_and_adds(before: str) -> str:
    """The policy: one step of the procedure after another, as far as the boxes answered as they should."""
    heard = re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", before)
    assert heard == [QUESTION, "+5", "=5", "-3", "=2", "+4", "=6"][: len(heard)]
    return PROCEDURE[len(heard) - 1]


@pytest.mark.slow("programs of packages that take seconds to import")
@pytest.mark.parametrize(
    ("python", "program", "metrics"),
    [
        (PYTHON, "openai_boxes.py", {}),
        (PYTHON, "verifiers_agent.py", {"turns": 7.0}),
        (OPENENV, "openenv_boxes.py", {"steps": 7.0}),
    ],
)
def test_a_program_of_a_package_is_one_branch_of_sampled_tokens(
    python: str, program: str, metrics: dict[str, float]
) -> None:
    episode = play(python, [program], TASK, looks_and_adds)
    assert [turn.text for turn in episode.record.turns] == PROCEDURE
    assert [turn.parent for turn in episode.record.turns] == list(range(FROM_PROMPT, len(PROCEDURE) - 1))
    assert all(turn.is_trained for turn in episode.record.turns)
    assert episode.open.score == Score(reward=1.0, metrics=metrics)


# ── environments by their names ───────────────────────────────────────────────────────────────

HANGMAN = json.dumps(
    {
        "taskset": {"game": "Hangman-v0"},
        "player": {"harness": {"id": "verifiers_boxes"}, "runtime": {"type": "subprocess"}},
    }
)
"""A game of the taskset ``textarena``, which comes with verifiers, with a harness that installs nothing."""
ECHO = {
    "__ENV_NAME__": "echo",
    "__ENV_CLASS_NAME__": "Echo",
    "__ENV_TITLE_NAME__": "Echo",
    "max_concurrent_envs=1": "max_concurrent_envs=16",
}
"""The environment that OpenEnv ships for newcomers: it says a message again, which is worth a tenth for each letter."""


def write_words(folder: Path, *words: str) -> dict[str, str]:
    """Word lists that the games of textarena would download, and the variable that names their folder."""
    lists = folder / "corpora" / "words"
    lists.mkdir(parents=True)
    for name in ("README", "en", "en-basic"):
        (lists / name).write_text("\n".join(words))
    return {"NLTK_DATA": str(folder)}


@contextlib.contextmanager
def serving_echo(folder: Path) -> Iterator[str]:
    """URL of an environment that OpenEnv's own template makes, in a process of its own interpreter."""
    if not Path(OPENENV).exists():
        pytest.skip(f"needs {OPENENV}: run bin/venv-agents")
    found = [OPENENV, "-c", "import openenv.cli.templates as found; print(*found.__path__)"]
    template = Path(subprocess.run(found, capture_output=True, text=True, check=True).stdout.strip()) / "openenv_env"
    for source in template.rglob("*.py"):
        name, text = str(source.relative_to(template)), source.read_text()
        for mark, word in ECHO.items():
            name, text = name.replace(mark, word), text.replace(mark, word)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        command = [OPENENV, "-m", "uvicorn", "server.app:app", "--log-level", "warning", "--fd", str(listener.fileno())]
        server = subprocess.Popen(command, cwd=folder, pass_fds=[listener.fileno()])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.kill()
            server.wait()


@pytest.mark.slow("imports textarena with all of its games")
def test_a_taskset_of_verifiers_is_played_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in write_words(tmp_path, "lion").items():
        monkeypatch.setenv(name, value)
    said = ["[L]", "[I]", "[LION]"]
    task = TaskInput(messages=[user("Guess.")], extra={"task": 3}, name="run/train/0/2")
    episode = play(PYTHON, ["verifiers_agent.py", "textarena", "--config", HANGMAN], task, saying(said))
    assert [turn.text for turn in episode.record.turns] == said
    assert [turn.parent for turn in episode.record.turns] == [FROM_NOTHING, 0, 1]
    assert "L   I   _   _" in episode.record.turns[2].observation
    assert episode.open.score == Score(reward=1.0)


@pytest.mark.slow("a server of a package that takes seconds to import")
def test_an_environment_of_openenv_is_played_by_its_url(tmp_path: Path) -> None:
    said = ["four", '{"message": "sixsix"}', '{"text": "none"}', "ten letters"]
    task = TaskInput(messages=[user("Echo.")], name="run/train/0/3")
    with serving_echo(tmp_path) as url:
        episode = play(OPENENV, ["openenv_agent.py", url], task, saying(said), max_turns=len(said))
    assert [turn.text for turn in episode.record.turns] == said
    heard = [turn.observation for turn in episode.record.turns]
    assert "Echo environment ready!" in heard[0]
    assert '{"echoed_message": "four", "message_length": 4}' in heard[1]
    assert "error: an action is a JSON object with message" in heard[3]
    assert episode.open.limit == "max_turns"
    assert episode.open.score == Score(reward=0.4 + 0.6 + 1.0, metrics={"steps": 4.0})


# ── frameworks ────────────────────────────────────────────────────────────────────────────────

SUM = TaskInput(messages=[user("What is 12 + 30?")], answer="42", name="run/train/0/1")
ADDED = {"a": 12, "b": 30}
POLICIES: dict[str, tuple[str, str]] = {
    "smolagents": (called("add", ADDED), called("final_answer", {"answer": "42"})),
    "smolagents-code": ("Thought: easy.\n<code>\nfinal_answer(12 + 30)\n</code>", ""),
    "openai-agents": (called("add", ADDED), "It is 42 ."),
    "pydantic-ai": (called("add", ADDED), called("final_result", {"total": 42})),
    "langgraph": (called("add", ADDED), "It is 42 .\nObservation: none"),
    "autogen": (f"I add.{called('add', ADDED)}", "It is 42 ."),
    "haystack": (f"I add.{called('add', ADDED)}", "It is 42 ."),
    "anthropic": (f"I add.{called('add', ADDED)}", "It is 42 ."),
    "mini-swe-agent": (
        called("bash", {"command": "echo $((12 + 30))"}),
        called("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo 42"}),
    ),
}
"""First turn of the policy, and the one after it has read what that gave."""


@pytest.mark.slow("programs of packages that take seconds to import")
@pytest.mark.parametrize("framework", POLICIES)
def test_an_agent_of_a_framework_plays_as_its_makers_ship_it(framework: str) -> None:
    turns = [turn for turn in POLICIES[framework] if turn]
    episode = play(FRAMEWORKS, ["frameworks.py", framework], SUM, saying(turns))
    assert [turn.text for turn in episode.record.turns] == turns
    assert all(turn.is_trained for turn in episode.record.turns)
    assert episode.open.score == Score(reward=1.0)
    if framework != "smolagents":  # It sends its calls back in words of its own.
        assert [turn.parent for turn in episode.record.turns[1:]] == list(range(len(turns) - 1))
        assert episode.open.counts.scores["broken_lineage"] == 0
