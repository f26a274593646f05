"""
Nine agents of eight packages, each as its makers document it, trained through the gateway without a change.

    environment.command = [".venv-agents/frameworks/bin/python", "examples/agents/frameworks.py", "smolagents"]

Only `main` knows of asyncrl: the task comes from $ASYNCRL_TASK, and the reward goes to $ASYNCRL_REWARD_URL. The clients
find the policy by themselves, in $OPENAI_BASE_URL and $OPENAI_API_KEY or in $ANTHROPIC_BASE_URL and $ANTHROPIC_API_KEY.
smolagents and pydantic-ai force a tool, which nothing enforces: they are answered with what the policy writes.

An error that a package raises for what the policy wrote is an empty answer, and no failure of the program: the episode
of one that fails is tried again, and its turns are lost.
"""

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def smolagents(question: str) -> str:
    """Agent of smolagents that calls tools, in Chat Completions."""
    from smolagents import ToolCallingAgent, tool

    return str(ToolCallingAgent([tool(add)], model=_smolagents_model(), max_steps=4).run(question))


def smolagents_code(question: str) -> str:
    """Agent of smolagents that writes Python."""
    from smolagents import CodeAgent

    return str(CodeAgent([], model=_smolagents_model(), max_steps=4).run(question))


def _smolagents_model() -> Any:
    from smolagents import OpenAIServerModel

    return OpenAIServerModel("policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])


def openai_agents(question: str) -> str:
    """Agent of OpenAI's SDK, in Responses."""
    from agents import Agent, Runner, function_tool, set_tracing_disabled
    from agents.exceptions import MaxTurnsExceeded, ModelBehaviorError

    set_tracing_disabled(disabled=True)
    agent = Agent(name="Calculator", instructions="Be brief.", tools=[function_tool(add)], model="policy")
    try:
        return str(Runner.run_sync(agent, question, max_turns=4).final_output)
    except (MaxTurnsExceeded, ModelBehaviorError):
        return ""


def pydantic_ai(question: str) -> str:
    """Agent of pydantic-ai whose answer has a type, which it gets by a tool."""
    from pydantic import BaseModel
    from pydantic_ai import Agent
    from pydantic_ai.exceptions import UnexpectedModelBehavior

    class Sum(BaseModel):
        total: int

    agent = Agent("openai-chat:policy", output_type=Sum)
    agent.tool_plain(add)
    try:
        return str(agent.run_sync(question).output.total)
    except UnexpectedModelBehavior:
        return ""


def langgraph(question: str) -> str:
    """Agent of langgraph with stop strings, in Chat Completions."""
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    agent = create_react_agent(ChatOpenAI(model="policy", stop_sequences=["\nObservation:"]), [add])
    return str(agent.invoke({"messages": [("user", question)]})["messages"][-1].content)


def autogen(question: str) -> str:
    """Agent of autogen, in streamed Chat Completions."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    able: Any = {"function_calling": True, **dict.fromkeys(("vision", "json_output", "structured_output"), False)}
    model = OpenAIChatCompletionClient(model="policy", model_info={**able, "family": "unknown"})
    agent = AssistantAgent("calculator", model, tools=[add], model_client_stream=True, max_tool_iterations=4)
    return str(asyncio.run(agent.run(task=question)).messages[-1].content)


def haystack(question: str) -> str:
    """Agent of haystack, in streamed Chat Completions."""
    os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import create_tool_from_function

    generator = OpenAIChatGenerator(model="policy")
    tools = [create_tool_from_function(add)]
    agent = Agent(chat_generator=generator, tools=tools, streaming_callback=lambda _: None, max_agent_steps=4)
    return str(agent.run([ChatMessage.from_user(question)])["last_message"].text)


def anthropic(question: str) -> str:
    """A loop around Anthropic's client, in streamed Messages."""
    from anthropic import Anthropic

    numbers = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    tools: Any = [{"name": "add", "description": "Add two numbers.", "input_schema": numbers}]
    client, messages = Anthropic(), list[Any]([{"role": "user", "content": question}])
    while True:
        with client.messages.stream(model="policy", max_tokens=512, messages=messages, tools=tools) as stream:
            said = stream.get_final_message()
        calls = [block for block in said.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in said.content if block.type == "text")
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": _added(dict(call.input))} for call in calls
        ]
        messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": results}]


def _added(arguments: dict[str, Any]) -> str:
    try:
        return str(add(**arguments))
    except TypeError as error:
        return f"error: {error}"


def mini_swe_agent(question: str) -> str:
    """The command line of mini-swe-agent, which speaks Messages and runs what the policy writes in a shell."""
    quiet = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1"}
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    record = Path("trajectory.json")
    command = [str(Path(sys.executable).with_name("mini")), "-m", "anthropic/policy", "-t", question, "-y"]
    subprocess.run(
        [*command, "--exit-immediately", "-o", str(record)],
        env=os.environ | quiet | offline,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    return str(json.loads(record.read_text())["info"].get("submission", ""))


AGENTS = {
    "smolagents": smolagents,
    "smolagents-code": smolagents_code,
    "openai-agents": openai_agents,
    "pydantic-ai": pydantic_ai,
    "langgraph": langgraph,
    "autogen": autogen,
    "haystack": haystack,
    "anthropic": anthropic,
    "mini-swe-agent": mini_swe_agent,
}


def main() -> None:
    task = json.loads(Path(os.environ["ASYNCRL_TASK"]).read_text())
    os.chdir(os.environ["TMPDIR"])
    said = AGENTS[sys.argv[1]](task["messages"][-1]["content"])
    word = {"reward": float(task["answer"] in said.split())}
    request = urllib.request.Request(os.environ["ASYNCRL_REWARD_URL"], json.dumps(word).encode(), method="PUT")
    with urllib.request.urlopen(request, timeout=30):
        pass


if __name__ == "__main__":
    main()
