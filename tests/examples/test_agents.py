"""Agent programs of real packages, each in its own interpreter, play hidden sums through the gateway."""

import asyncio
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

from asyncrl.config.sections.environment import Environment
from asyncrl.episodes.environment import Score, TaskInput
from asyncrl.episodes.gateway.app import serve
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.episodes.pool import Programs
from asyncrl.messages.trajectory import FROM_PROMPT
from tests.episodes.gateway.doubles import Episode, user

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
    if not Path(python).exists():
        pytest.skip(f"needs {python}: run bin/venv-agents")

    async def main() -> None:
        gateway = Gateway()
        programs = Programs(Environment(command=[python, str(AGENTS / program)]), "run")
        async with asyncio.timeout(100), serve(gateway, "tcp://127.0.0.1:0"):
            episode = Episode(looks_and_adds, [user(QUESTION)], gateway=gateway)
            try:
                await programs.open(TASK.name).solve(TASK, episode.open.base_url, episode.open.key)
            finally:
                await programs.aclose()
        assert [turn.text for turn in episode.record.turns] == PROCEDURE
        assert [turn.parent for turn in episode.record.turns] == list(range(FROM_PROMPT, len(PROCEDURE) - 1))
        assert all(turn.is_trained for turn in episode.record.turns)
        assert episode.open.score == Score(reward=1.0, metrics=metrics)

    asyncio.run(main())


# ── frameworks ────────────────────────────────────────────────────────────────────────────────

SUM = TaskInput(messages=[user("What is 12 + 30?")], answer="42", name="run/train/0/1")
ADDED = {"a": 12, "b": 30}
POLICIES: dict[str, tuple[str, str]] = {
    "smolagents": (called("add", ADDED), called("final_answer", {"answer": "42"})),
    "smolagents-code": ("Thought: easy.\n<code>\nfinal_answer(12 + 30)\n</code>", ""),
    "openai-agents": (called("add", ADDED), "It is 42 ."),
    "pydantic-ai": (called("add", ADDED), called("final_result", {"total": 42})),
    "langgraph": (called("add", ADDED), "It is 42 .\nObservation: none"),
    "anthropic": (called("add", ADDED), "It is 42 ."),
    "mini-swe-agent": (
        called("bash", {"command": "echo $((12 + 30))"}),
        called("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo 42"}),
    ),
}
"""First turn of the policy, and the one after it has read what that gave."""


@pytest.mark.slow("programs of packages that take seconds to import")
@pytest.mark.parametrize("framework", POLICIES)
def test_an_agent_of_a_framework_plays_as_its_makers_ship_it(framework: str) -> None:
    if not Path(FRAMEWORKS).exists():
        pytest.skip(f"needs {FRAMEWORKS}: run bin/venv-agents")
    turns = [turn for turn in POLICIES[framework] if turn]

    async def main() -> None:
        gateway = Gateway(allowed=["tool_choice"])
        command = [FRAMEWORKS, str(AGENTS / "frameworks.py"), framework]
        programs = Programs(Environment(command=command), "run")
        async with asyncio.timeout(280), serve(gateway, "tcp://127.0.0.1:0"):
            said = iter(turns)
            episode = Episode(lambda _: next(said), SUM.messages, gateway=gateway, max_tokens=4000)
            try:
                await programs.open(SUM.name).solve(SUM, episode.open.base_url, episode.open.key)
            finally:
                await programs.aclose()
        assert [turn.text for turn in episode.record.turns] == turns
        assert all(turn.is_trained for turn in episode.record.turns)
        assert episode.open.score == Score(reward=1.0)
        if framework != "smolagents":  # It sends its calls back in words of its own.
            assert [turn.parent for turn in episode.record.turns[1:]] == list(range(len(turns) - 1))
            assert episode.open.counts.scores["broken_lineage"] == 0

    asyncio.run(main())
