"""A program written against the plain `openai` client trains unchanged: whole replies, streams and calls of tools."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncrl.episodes.conversation import MALFORMED
from asyncrl.episodes.gateway.app import serve
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.episodes.record import EpisodeLimits
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import FROM_PROMPT
from tests.episodes.gateway.doubles import END, NO_LIMITS, Episode, shown, user

pytest.importorskip("uvicorn")
openai = pytest.importorskip("openai")

AMOUNTS = {"a": 5, "b": -2}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def policy(before: str) -> str:
    """Looks into every box, one call a turn, then adds."""
    seen = [box for box in AMOUNTS if f'"{box}"' in before]
    box = next((box for box in AMOUNTS if box not in seen), None)
    if box is None:
        return "#### 3"
    return f'Now {box}.<tool_call>{{"name": "look", "arguments": {{"box": "{box}", "n": 1}}}}</tool_call>'


def play(scene: Callable[[Episode, Any], Awaitable[None]], limits: EpisodeLimits = NO_LIMITS) -> None:
    async def main() -> None:
        gateway = Gateway()
        async with asyncio.timeout(30), serve(gateway, "tcp://127.0.0.1:0"):
            episode = Episode(policy, [user("How many?")], tools=json.dumps([LOOK]), gateway=gateway, limits=limits)
            async with openai.AsyncOpenAI(base_url=episode.open.base_url, api_key=episode.open.key) as client:
                await scene(episode, client)

    asyncio.run(main())


async def whole(client: Any, messages: list[Any]) -> Any:
    answer = await client.chat.completions.create(model="any", messages=messages, tools=[LOOK], temperature=0.7)
    return answer.choices[0].message


async def streamed(client: Any, messages: list[Any]) -> Any:
    """A message put together from deltas, as agent programs do."""
    stream = await client.chat.completions.create(model="any", messages=messages, tools=[LOOK], stream=True)
    content, calls = "", dict[int, Any]()
    async for chunk in stream:
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for call in delta.tool_calls or []:
            if call.id:
                calls[call.index] = call.model_dump(exclude={"index"})
            else:
                calls[call.index]["function"]["arguments"] += call.function.arguments
    return {"role": "assistant", "content": content} | ({"tool_calls": list(calls.values())} if calls else {})


async def solve(client: Any, ask: Callable[[Any, list[Any]], Awaitable[Any]]) -> str:
    messages: list[Any] = [user("How many?")]
    while True:
        said = await ask(client, messages)
        messages.append(said)
        fields = said if isinstance(said, dict) else said.model_dump()
        if not fields.get("tool_calls"):
            return str(fields["content"])
        for call in fields["tool_calls"]:
            box = json.loads(call["function"]["arguments"])["box"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"{AMOUNTS[box]:+}"})


@pytest.mark.parametrize("ask", [whole, streamed])
def test_an_agent_of_three_turns_is_one_branch(ask: Callable[[Any, list[Any]], Awaitable[Any]]) -> None:
    async def scene(episode: Episode, client: Any) -> None:
        assert await solve(client, ask) == "#### 3"
        record = episode.record
        assert [turn.parent for turn in record.turns] == [FROM_PROMPT, 0, 1]
        assert all(turn.is_trained for turn in record.turns)
        assert record.turns[1].context_ids[0] != END  # the policy wrote it itself
        assert shown(record.ids_through(2)).count("<|im_start|>assistant") == 3
        assert episode.open.counts.scores == {
            "forks": 0.0,
            "roots": 0.0,
            "broken_lineage": 0.0,
            "unenforced": 0.0,
            **dict.fromkeys(MALFORMED, 0.0),
        }

    play(scene)


def test_a_limit_is_the_error_that_agents_know() -> None:
    async def scene(episode: Episode, client: Any) -> None:
        with pytest.raises(openai.BadRequestError) as error:
            await solve(client, whole)
        assert error.value.code == "max_turns_exceeded"
        assert (len(episode.record.turns), episode.open.limit) == (2, "max_turns")

    play(scene, EpisodeLimits(max_turns=2, max_tokens=10_000))


def test_a_wrong_key_is_the_error_that_agents_know() -> None:
    async def scene(episode: Episode, client: Any) -> None:
        with pytest.raises(openai.AuthenticationError):
            await whole(client.with_options(api_key="sk-other"), [user("How many?")])
        assert episode.record.turns == []

    play(scene)


def test_a_failed_request_is_tried_again() -> None:
    async def scene(episode: Episode, client: Any) -> None:
        episode.engine.error = EngineError("no slot")
        asking = asyncio.create_task(whole(client, [user("How many?")]))
        while not episode.open.counts["refused_engine_failed"]:
            await asyncio.sleep(0.001)
        episode.engine.error = None
        assert (await asking).content == "Now a."
        assert len(episode.record.turns) == 1

    play(scene)
