"""Ten thousand scripted episodes over thirteen families of chat templates: no id is tokenized again."""

import asyncio
import json
from itertools import chain

import pytest

from asyncrl.config.sections.sampling import ToolParser
from asyncrl.engine import TurnBoundary
from asyncrl.rollout.engines.turn_boundaries import make_boundary
from tests.rollout.engines.chat_families import FAMILIES, WITHOUT_TOOLS, Family, tokenizer
from tests.rollout.engines.scripted_episodes import Script, play, shown

FEW, MANY = 100, 770
"""Episodes of a family: of every run of the tests, and of the long ones; the latter are 10,010 together."""
STRING = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOLS = json.dumps([{"type": "function", "function": {"name": f"tool{n}", "parameters": STRING}} for n in range(2)])


def spelled(family: Family, ids: list[int]) -> str:
    return tokenizer(family.name).decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def check(family: Family, boundary: TurnBoundary, script: Script) -> bool:
    """Assert what holds for every episode; True if the template renders the conversation as the policy reads it."""
    turns = script.record.turns
    assert [turn.completion.completion_ids for turn in turns] == script.sampled
    read = [*script.record.ids_through(len(turns) - 1), *script.tail]
    parts = [(turn.context_ids, ids) for turn, ids in zip(turns, script.sampled, strict=True)]
    assert read == [*script.record.prompt_ids, *chain.from_iterable(chain.from_iterable(parts)), *script.tail]
    told, tools = shown(family, script.messages, TOOLS)
    rendered = tokenizer(family.name).apply_chat_template(
        told, tools=json.loads(tools or "null"), add_generation_prompt=True, tokenize=False
    )
    assert rendered.endswith(spelled(family, script.tail))
    is_same = rendered == spelled(family, read)
    assert is_same or script.is_asked_again or not script.is_plain
    assert (boundary.retold(script.messages, read) is None) == is_same
    calls = [call for ids in script.sampled for call in boundary.said(ids, "stop").tool_calls]
    assert [(call.name, call.arguments) for call in calls] == [(name, {"a": value}) for name, value in script.calls]
    return is_same


@pytest.mark.parametrize("family", (FAMILIES | WITHOUT_TOOLS).values(), ids=FAMILIES | WITHOUT_TOOLS)
@pytest.mark.parametrize(
    "seeds", [range(FEW), pytest.param(range(FEW, MANY), marks=pytest.mark.long("many more seeds"))], ids=["few", "all"]
)
def test_an_episode_is_what_its_template_renders_and_no_id_is_tokenized_again(family: Family, seeds: range) -> None:
    tool_parser: ToolParser = "plain" if family in WITHOUT_TOOLS.values() else "auto"
    boundary = make_boundary(tokenizer(family.name), tools=TOOLS, tool_parser=tool_parser)

    async def run() -> int:
        scripts = [await play(family, seed, boundary, TOOLS) for seed in seeds]
        return sum(check(family, boundary, script) for script in scripts)

    assert asyncio.run(run()) > len(seeds) // 5
