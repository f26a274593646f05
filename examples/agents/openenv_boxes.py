"""
An environment of OpenEnv, trained through the gateway from an interpreter of its own.

    environment.command = [".venv-agents/openenv/bin/python", "examples/agents/openenv_boxes.py"]

The environment is served on loopback, as it would be in a container elsewhere; an agent steps it and asks the policy at
$OPENAI_BASE_URL for every action. With an environment that runs already, only `play` remains.
"""

import asyncio
import json
import os
import socket
import urllib.request
from pathlib import Path
from typing import Any

import uvicorn
from boxes import MAX_TURNS, Boxes, is_right
from openai import AsyncOpenAI
from openenv.core import GenericEnvClient
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    text: str


class Heard(Observation):
    text: str = ""


class BoxesEnvironment(Environment[Say, Heard, State]):
    def __init__(self) -> None:
        super().__init__()
        self._boxes = Boxes("", "")
        self._answer = ""
        self._state = State()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        *,
        question: str = "",
        amounts: str = "",
        answer: str = "",
        **_: Any,
    ) -> Heard:
        self._boxes, self._answer = Boxes(question, amounts), answer
        self._state = State(episode_id=episode_id)
        return Heard(text=question)

    def step(self, action: Say, timeout_s: float | None = None, **_: Any) -> Heard:
        self._state.step_count += 1
        heard = self._boxes.answer(action.text)
        if heard is None or self._state.step_count == MAX_TURNS:
            return Heard(done=True, reward=float(is_right(action.text, self._answer)))
        return Heard(text=heard, reward=0.0)

    @property
    def state(self) -> State:
        return self._state


async def main(task: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = create_fastapi_app(BoxesEnvironment, Say, Heard)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve([listener]))
        try:
            await play(task, f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            server.should_exit = True
            await serving


async def play(task: dict[str, Any], url: str) -> None:
    """Play one episode of the environment at ``url``, and put its reward."""
    question, extra = task["messages"][-1]["content"], task["extra"]
    messages: list[Any] = [{"role": "user", "content": question}]
    async with GenericEnvClient(base_url=url) as env, AsyncOpenAI() as policy:
        result = await env.reset(question=question, amounts=extra["amounts"], answer=task["answer"], seed=task["seed"])
        while not result.done:
            reply = await policy.chat.completions.create(model="policy", messages=messages)
            said = reply.choices[0].message
            result = await env.step({"text": said.content or ""})
            messages += [said, {"role": "user", "content": result.observation["text"]}]
    put({"reward": result.reward, "metrics": {"steps": len(messages) // 2}})


def put(word: dict[str, Any]) -> None:
    """Tell the run the reward."""
    request = urllib.request.Request(os.environ["ASYNCRL_REWARD_URL"], json.dumps(word).encode(), method="PUT")
    with urllib.request.urlopen(request, timeout=30):
        pass


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(os.environ["ASYNCRL_TASK"]).read_text())))
