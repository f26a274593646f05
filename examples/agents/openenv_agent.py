"""
Episodes of any environment of OpenEnv, trained through the gateway from an interpreter of its own.

    environment.command = [".venv-agents/openenv/bin/python", "examples/agents/openenv_agent.py", "http://127.0.0.1:8000"]

An environment that runs is named by its URL, and any other by the id of its Space, such as ``openenv/echo_env``, whose
container is then started for each episode. The policy reads the row, which says how to act, and what ``reset``
observes. Its turn is an action: a JSON object, or the text of the only field that an action must have; of one that the
environment does not know, it reads an error. Further columns of a row, the seed, the question and the answer of the
row are arguments of ``reset``, of which an environment takes those that it names. The reward is the sum of the steps;
an environment without an end is ended by ``environment.max_turns``.
"""

import asyncio
import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from openenv.core import GenericEnvClient


async def play(task: dict[str, Any], client: GenericEnvClient) -> None:
    """Play one episode, and put its reward after each step: whatever ends it, the last one counts."""
    async with client as env, AsyncOpenAI() as policy:
        given = {"seed": task["seed"], "answer": task["answer"], "question": task["messages"][-1]["content"]}
        result = await env.reset(**given | task["extra"])
        actions, total = await asyncio.to_thread(Actions, env.base_url), 0.0
        messages = begun(task["messages"], words(result.observation))
        while not result.done:
            reply = await policy.chat.completions.create(model="policy", messages=messages)
            said = reply.choices[0].message
            try:
                result = await env.step(actions.read(said.content or ""))
                heard = words(result.observation)
                total += result.reward or 0.0
            except RuntimeError as error:
                if "(code: VALIDATION_ERROR)" not in str(error):
                    raise
                heard = actions.problem
            put({"reward": total, "metrics": {"steps": len(messages) // 2 + 1}})
            messages += [said, {"role": "user", "content": heard}]


def begun(messages: list[Any], heard: str) -> list[Any]:
    """The messages of the row, whose last one goes on with what ``reset`` observed, unless it says that already."""
    last = messages[-1]["content"]
    if heard == last:
        return list(messages)
    return [*messages[:-1], {**messages[-1], "content": f"{last}\n\n{heard}"}]


class Actions:
    """Actions of an environment, by its schema, for which its client has no call."""

    def __init__(self, url: str) -> None:
        with urllib.request.urlopen(f"{url}/schema", timeout=30) as answer:
            schema = json.load(answer)["action"]
        required = schema.get("required", [])
        self._field = required[0] if len(required) == 1 else ""
        self.problem = f"error: an action is a JSON object with {', '.join(required) or 'fields'}"

    def read(self, said: str) -> dict[str, Any]:
        """The action that a turn of the policy is; one that the environment refuses if it is none."""
        try:
            value = json.loads(said)
        except (ValueError, RecursionError):
            value = None
        return value if isinstance(value, dict) else {self._field or "text": said}


def words(observation: dict[str, Any]) -> str:
    """What the policy reads: the text of an observation that has nothing else, or its JSON."""
    shown = {name: value for name, value in observation.items() if name != "metadata"}
    match list(shown.values()):
        case [str(text)]:
            return text
    return json.dumps(shown, ensure_ascii=False)


def put(word: dict[str, Any]) -> None:
    """Tell the run the reward."""
    request = urllib.request.Request(os.environ["ASYNCRL_REWARD_URL"], json.dumps(word).encode(), method="PUT")
    with urllib.request.urlopen(request, timeout=30):
        pass


def read_task() -> dict[str, Any]:
    task: dict[str, Any] = json.loads(Path(os.environ["ASYNCRL_TASK"]).read_text())
    return task


async def main(where: str) -> None:
    is_url = where.startswith(("http://", "https://"))
    client = GenericEnvClient(base_url=where) if is_url else await GenericEnvClient.from_env(where)
    await play(read_task(), client)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
