"""
An environment of OpenEnv that is served for each episode, and trained through the gateway from its own interpreter.

    environment.command = [".venv-agents/openenv/bin/python", "examples/agents/openenv_boxes.py"]

It is served on loopback, as it would be in a container elsewhere; openenv_agent.py plays it.
"""

import asyncio
import socket
from typing import Any

import uvicorn
from boxes import MAX_TURNS, Boxes, is_right
from openenv.core import GenericEnvClient
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv_agent import play, read_task


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


async def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = create_fastapi_app(BoxesEnvironment, Say, Heard)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve([listener]))
        try:
            await play(read_task(), GenericEnvClient(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}"))
        finally:
            server.should_exit = True
            await serving


if __name__ == "__main__":
    asyncio.run(main())
