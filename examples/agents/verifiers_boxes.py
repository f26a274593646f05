"""
A package of verifiers: a taskset, an environment that plays the boxes, and a harness that asks for one reply at a time.

It knows nothing of asyncrl; verifiers_agent.py runs its episodes.
"""

from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf
from boxes import MAX_TURNS, Boxes, is_right
from openai import AsyncOpenAI
from verifiers.v1.dialects.chat import message_to_wire

__all__ = ["BoxesEnv", "BoxesTaskset", "Chat"]


class BoxesData(vf.TaskData):
    amounts: str
    answer: str


class BoxesTask(vf.Task[BoxesData]):
    @vf.reward
    async def correct(self, task: BoxesData, trace: vf.Trace) -> float:
        return float(is_right(trace.last_reply, task.answer))

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class BoxesTasksetConfig(vf.TasksetConfig):
    rows: list[dict[str, str]] = []
    """Each with ``prompt``, ``amounts`` and ``answer``."""


class BoxesTaskset(vf.Taskset[BoxesTask, BoxesTasksetConfig]):
    def load(self) -> Iterable[BoxesTask]:
        for row in self.config.rows:
            yield BoxesTask(BoxesData(**row), self.config.task)


class Chat(vf.Harness[vf.HarnessConfig]):
    """One reply a segment: the environment is the user."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(  # noqa: PLR0917  the signature is that of verifiers
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: vf.TaskData
    ) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        begun = [vf.SystemMessage(content=system)] if system else []
        said = prompt if isinstance(prompt, list) else [vf.UserMessage(content=prompt)]
        messages: Any = [message_to_wire(message) for message in [*begun, *said]]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(0, "", "")


class BoxesConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig(), max_turns=MAX_TURNS, network_notice=False)


class BoxesEnv(vf.Env[BoxesConfig]):
    async def run(self, task: BoxesTask, agents: vf.Agents) -> None:
        boxes = Boxes(task.data.prompt_text, task.data.amounts)
        async with agents.agent.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated and (heard := boxes.answer(segment.last_reply)) is not None:
                segment = await interaction.turn(heard)
