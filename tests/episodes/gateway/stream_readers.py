"""
Stream readers of SDKs, as their makers ship them, each in the dialects that it speaks.

    python stream_readers.py QUESTION...    under .venv-agents/frameworks; prints a line for each reader and question

They find the policy in ``OPENAI_BASE_URL`` and ``ANTHROPIC_BASE_URL``, with their keys.
"""

import asyncio
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

LOOK = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"], "additionalProperties": False}
NAMED = {"name": "look", "description": "Look."}
CHAT_TOOL: Any = {"type": "function", "function": {**NAMED, "parameters": LOOK}}
RESPONSES_TOOL: Any = {"type": "function", **NAMED, "parameters": LOOK, "strict": False}
MESSAGES_TOOL: Any = {**NAMED, "input_schema": LOOK}
THINKS: Any = {"type": "enabled", "budget_tokens": 1024}

Heard = dict[str, Any]


def heard(words: str | None, calls: Iterable[tuple[str, Any]], thought: str | None = "") -> Heard:
    """What arrived; arguments as JSON or as an object."""
    told = [[name, json.loads(given) if isinstance(given, str) else given] for name, given in calls]
    return {"words": words or "", "calls": told, "thought": thought or ""}


def user(question: str) -> Any:
    return [{"role": "user", "content": question}]


# ── clients of the makers ─────────────────────────────────────────────────────────────────────


def openai_chat(question: str) -> Heard:
    from openai import OpenAI
    from openai.lib.streaming.chat import ChatCompletionStreamState

    state = ChatCompletionStreamState()
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in OpenAI().chat.completions.create(model="m", messages=user(question), tools=[CHAT_TOOL], **options):
        state.handle_chunk(chunk)
    said = state.current_completion_snapshot.choices[0].message
    calls = [(call.function.name, call.function.arguments) for call in said.tool_calls or ()]
    return heard(said.content, calls, getattr(said, "reasoning_content", ""))


def openai_responses(question: str) -> Heard:
    from openai import OpenAI

    with OpenAI().responses.stream(model="m", input=question, tools=[RESPONSES_TOOL]) as stream:
        output = list(stream)[-1].response.output
    words = [part.text for item in output if item.type == "message" for part in item.content]
    calls = [(item.name, item.arguments) for item in output if item.type == "function_call"]
    thoughts = [part.text for item in output if item.type == "reasoning" for part in item.content]
    return heard("".join(words), calls, "".join(thoughts))


def anthropic_messages(question: str) -> Heard:
    from anthropic import Anthropic

    asked: Any = {"model": "m", "max_tokens": 2000, "messages": user(question), "thinking": THINKS}
    with Anthropic().messages.stream(tools=[MESSAGES_TOOL], **asked) as stream:
        return of_blocks(stream.get_final_message().content)


def of_blocks(blocks: Iterable[Any]) -> Heard:
    by_kind: dict[str, list[Any]] = {"text": [], "thinking": [], "tool_use": []}
    for block in blocks:
        by_kind[block.type].append(block)
    words = "".join(block.text for block in by_kind["text"])
    calls = [(block.name, block.input) for block in by_kind["tool_use"]]
    return heard(words, calls, "".join(block.thinking for block in by_kind["thinking"]))


# ── litellm ───────────────────────────────────────────────────────────────────────────────────


def litellm_chat(question: str) -> Heard:
    return litellm("openai/m", question)


def litellm_messages(question: str) -> Heard:
    return litellm("anthropic/claude-sonnet-4-5", question, thinking=THINKS)


def litellm(model: str, question: str, **options: Any) -> Heard:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    litellm.suppress_debug_info = True
    chunks = litellm.completion(model, user(question), tools=[CHAT_TOOL], stream=True, max_tokens=2000, **options)
    said = litellm.stream_chunk_builder(list(chunks)).choices[0].message
    calls = [(call.function.name, call.function.arguments) for call in said.tool_calls or ()]
    return heard(said.content, calls, getattr(said, "reasoning_content", ""))


# ── langchain ─────────────────────────────────────────────────────────────────────────────────


def langchain_chat(question: str) -> Heard:
    from langchain_openai import ChatOpenAI

    return langchain(ChatOpenAI(model="m"), question)


def langchain_responses(question: str) -> Heard:
    from langchain_openai import ChatOpenAI

    return langchain(ChatOpenAI(model="m", use_responses_api=True), question)


def langchain_messages(question: str) -> Heard:
    from langchain_anthropic import ChatAnthropic

    return langchain(ChatAnthropic(model="m", max_tokens=2000, thinking=THINKS), question)


def langchain(model: Any, question: str) -> Heard:
    first, *others = model.bind_tools([CHAT_TOOL]).stream(question)
    said = sum(others, start=first)
    blocks = said.content_blocks
    words = "".join(block.get("text", "") for block in blocks if block["type"] == "text")
    thought = "".join(block.get("reasoning", "") for block in blocks if block["type"] == "reasoning")
    assert not said.invalid_tool_calls, said.invalid_tool_calls
    return heard(words, [(call["name"], call["args"]) for call in said.tool_calls], thought)


# ── haystack ──────────────────────────────────────────────────────────────────────────────────


def haystack_chat(question: str) -> Heard:
    from haystack.components.generators.chat import OpenAIChatGenerator

    return haystack(OpenAIChatGenerator, question)


def haystack_responses(question: str) -> Heard:
    from haystack.components.generators.chat import OpenAIResponsesChatGenerator

    return haystack(OpenAIResponsesChatGenerator, question)


def haystack(generator: Any, question: str) -> Heard:
    from haystack.dataclasses import ChatMessage
    from haystack.tools import Tool

    tool = Tool(**NAMED, parameters=LOOK, function=print)
    asks = generator(model="m", streaming_callback=lambda _: None, tools=[tool])
    (said,) = asks.run([ChatMessage.from_user(question)])["replies"]
    thought = said.reasoning.reasoning_text if said.reasoning else ""
    return heard("".join(said.texts), [(call.tool_name, call.arguments) for call in said.tool_calls], thought)


# ── autogen ───────────────────────────────────────────────────────────────────────────────────

FAMILY: Any = {
    "vision": False, "function_calling": True, "json_output": False, "family": "unknown", "structured_output": False,
}  # fmt: skip


def autogen_chat(question: str) -> Heard:
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    return asyncio.run(autogen(OpenAIChatCompletionClient(model="m", model_info=FAMILY), question))


def autogen_messages(question: str) -> Heard:
    from autogen_ext.models.anthropic import AnthropicChatCompletionClient

    return asyncio.run(autogen(AnthropicChatCompletionClient(model="m", model_info=FAMILY), question))


async def autogen(client: Any, question: str) -> Heard:
    from autogen_core.models import UserMessage

    schema: Any = {**NAMED, "parameters": LOOK}
    pieces = [
        piece async for piece in client.create_stream([UserMessage(content=question, source="u")], tools=[schema])
    ]
    said = pieces.pop()
    if isinstance(said.content, str):
        return heard(said.content, [], said.thought)
    return heard(said.thought, [(call.name, call.arguments) for call in said.content])


# ── agno ──────────────────────────────────────────────────────────────────────────────────────


def agno_chat(question: str) -> Heard:
    from agno.models.openai import OpenAIChat

    return agno(OpenAIChat(id="m"), question)


def agno_responses(question: str) -> Heard:
    from agno.models.openai import OpenAIResponses

    return agno(OpenAIResponses(id="m"), question)


def agno_messages(question: str) -> Heard:
    from agno.models.anthropic import Claude

    return agno(Claude(id="m", thinking=THINKS), question)


def agno(model: Any, question: str) -> Heard:
    from agno.agent import Agent
    from agno.tools import tool

    def look(at: int) -> None:
        """Look."""

    agent = Agent(model=model, tools=[tool(external_execution=True)(look)], telemetry=False)
    words, thought, calls = "", "", []
    for event in agent.run(question, stream=True):
        if event.event == "RunContent":
            words += event.content or ""
            thought += event.reasoning_content or ""
        elif event.event == "RunPaused":
            calls = [(one.tool_name, one.tool_args) for one in event.tools]
        elif event.event == "RunError":
            raise RuntimeError(event.content)
    return heard(words, calls, thought)


# ── pydantic-ai ───────────────────────────────────────────────────────────────────────────────


def pydantic_ai_chat(question: str) -> Heard:
    return pydantic_ai("openai-chat:m", question)


def pydantic_ai_responses(question: str) -> Heard:
    return pydantic_ai("openai-responses:m", question)


def pydantic_ai_messages(question: str) -> Heard:
    return pydantic_ai("anthropic:m", question, anthropic_thinking=THINKS, max_tokens=2000)


def pydantic_ai(model: str, question: str, **settings: Any) -> Heard:
    from pydantic_ai.direct import model_request_stream
    from pydantic_ai.messages import ModelRequest
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    asked = [ModelRequest.user_text_prompt(question)]
    tools = ModelRequestParameters(function_tools=[ToolDefinition(**NAMED, parameters_json_schema=LOOK)])

    async def ask() -> Any:
        options: Any = {"model_settings": settings, "model_request_parameters": tools}
        async with model_request_stream(model, asked, **options) as stream:
            async for _ in stream:
                pass
        return stream.get()

    parts = asyncio.run(ask()).parts
    kinds = {kind: [part for part in parts if part.part_kind == kind] for kind in ("text", "tool-call", "thinking")}
    calls = [(part.tool_name, part.args) for part in kinds["tool-call"]]
    words, thought = ("".join(part.content for part in kinds[kind]) for kind in ("text", "thinking"))
    return heard(words, calls, thought)


READERS: list[Callable[[str], Heard]] = [
    openai_chat, openai_responses, anthropic_messages, litellm_chat, litellm_messages, langchain_chat,
    langchain_responses, langchain_messages, haystack_chat, haystack_responses, autogen_chat,
    agno_chat, agno_responses, agno_messages, pydantic_ai_chat, pydantic_ai_responses, pydantic_ai_messages,
]  # fmt: skip


def main() -> None:
    warnings.simplefilter("ignore")
    for reader in READERS:
        for question in sys.argv[1:]:
            try:
                told = reader(question)
            except Exception as error:  # noqa: BLE001  what a client cannot read is what the test is about
                told = {"error": f"{type(error).__name__}: {error}"}
            sys.stdout.write(json.dumps({"reader": reader.__name__, "question": question, **told}) + "\n")


if __name__ == "__main__":
    main()
