"""What the stream readers of agents' SDKs make of each shape of a reply, in each dialect that they speak."""

import asyncio
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from asyncrl.episodes.gateway.app import serve
from asyncrl.episodes.gateway.gateway import Gateway
from tests.episodes.gateway.doubles import Episode, ThinkingBoundary, user
from tests.examples.test_agents import FRAMEWORKS, ROOT, called

HERE = Path(__file__).parent
NODE = ROOT / ".venv-agents" / "node"
THOUGHT, WORDS, CALLS = "Boxes are many.", "I look.", [["look", {"at": 0}], ["look", {"at": 1}]]
MOST = 200
"""Tokens of a turn, which are characters."""
SHAPES: dict[str, tuple[str, str, list[Any]]] = {
    "words": ("", WORDS, []),
    "words after a thought": (THOUGHT, WORDS, []),
    "one call": ("", "", CALLS[:1]),
    "two calls after a thought": (THOUGHT, "", CALLS),
    "words and calls": ("", WORDS, CALLS),
    "words and a call after a thought": (THOUGHT, WORDS, CALLS[:1]),
    "words that are cut": ("", "I look. " * MOST, []),
    "nothing": ("", "", []),
}
"""Thought, words and calls of the policy's turn, by the question that it answers."""
DEAF = {
    "langchain_chat", "langchain_responses", "haystack_chat", "agno_responses", "pydantic_ai_responses",
    "ai_chat", "ai_responses",
}  # fmt: skip
"""Readers that take no thoughts in this form: OpenAI's own models tell none, or summaries alone."""
QUIET = {"HAYSTACK_TELEMETRY_ENABLED": "False", "LANGSMITH_TRACING": "false", "AI_SDK_LOG_WARNINGS": "false"}


def written(question: str) -> str:
    """The turn as the policy writes it."""
    thought, words, calls = SHAPES[question]
    return f"<think>{thought}</think>" * bool(thought) + words + "".join(called(*call) for call in calls)


async def heard(command: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """What the readers of a program tell."""
    policy = lambda before: written(before.rpartition("user\n")[2].partition("<|im_end|>")[0])  # noqa: E731
    gateway = Gateway()
    async with asyncio.timeout(280), serve(gateway, "tcp://127.0.0.1:0"):
        episode = Episode(policy, [user("Which?")], gateway=gateway, max_tokens=MOST)
        episode.boundary = episode.conversation.boundary = ThinkingBoundary()
        url, key = episode.open.base_url, episode.open.key
        keys = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key, "ANTHROPIC_API_KEY": key}
        places = dict.fromkeys(("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"), url.removesuffix("/v1"))
        program = await asyncio.create_subprocess_exec(
            *command, *SHAPES, env={**os.environ, **QUIET, **keys, **places}, cwd=folder, stdout=asyncio.subprocess.PIPE
        )
        told, _ = await program.communicate()
    assert program.returncode == 0
    return [json.loads(line) for line in told.decode().splitlines() if line.startswith("{")]


def assert_all_arrived(told: Sequence[dict[str, Any]], num_readers: int) -> None:
    """Every word and call is there, and a thought is whole or left out, as autogen does beside calls."""
    expected = []
    for one in told:
        thought, words, calls = SHAPES[one["question"]]
        expected.append(
            {**one, "words": words[:MOST].strip(), "calls": calls, "thought": one.get("thought") and thought}
        )
    assert [{**one, "words": one.get("words", "").strip()} for one in told] == expected
    silent = {one["reader"] for one in told if one["question"] == "words after a thought" and not one["thought"]}
    assert silent == DEAF & {one["reader"] for one in told}
    assert len(told) == num_readers * len(SHAPES)


@pytest.mark.slow("imports eight SDKs")
def test_sdks_of_python_read_every_word_and_call_of_a_stream(tmp_path: Path) -> None:
    if not Path(FRAMEWORKS).exists():
        pytest.skip(f"needs {FRAMEWORKS}: run bin/venv-agents")
    told = asyncio.run(heard([FRAMEWORKS, str(HERE / "stream_readers.py")], tmp_path))
    assert_all_arrived(told, 17)


@pytest.mark.long("SDKs of Node.js read the same events; needs npm")
def test_sdks_of_node_read_every_word_and_call_of_a_stream() -> None:
    if not shutil.which("node") or not NODE.exists():
        pytest.skip(f"needs node, and {NODE}: run bin/venv-agents where npm is installed")
    assert_all_arrived(asyncio.run(heard(["node", str(HERE / "stream_readers.mjs")], NODE)), 7)
