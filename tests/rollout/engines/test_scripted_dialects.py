"""Scripted agent programs in three dialects, over eleven families of chat templates: what is asked is what is read."""

import asyncio
import json
import random
from itertools import chain
from typing import Any

import msgspec
import pytest

from asyncrl.engine import ChatMessage, TurnBoundary
from asyncrl.episodes.conversation import Conversation
from asyncrl.episodes.gateway.app import GatewayApp
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.episodes.record import EpisodeRecord
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Prompt, Sampling
from asyncrl.rollout.engines import text
from asyncrl.rollout.engines.turn_boundaries import make_boundary
from tests.episodes.gateway.doubles import call
from tests.rollout.engines.chat_families import FAMILIES, Family, tokenizer
from tests.rollout.engines.scripted_episodes import LIMITS, ScriptedPolicy, words
from tests.rollout.engines.test_scripted_episodes import STRING, spelled

FEW, MANY = 12, 910
"""Episodes of a family and a dialect: of every run of the tests, and of the long ones."""
FUNCTIONS = [{"name": f"tool{n}", "parameters": STRING} for n in range(2)]


class Said(msgspec.Struct):
    """A reply as its program reads it."""

    content: str
    thought: str
    calls: list[tuple[str, str, dict[str, Any]]]
    """Id, name and arguments."""


class Chat:
    """A program that speaks Chat Completions."""

    path = "/v1/chat/completions"
    tools: Any = [{"type": "function", "function": function} for function in FUNCTIONS]

    def __init__(self, draw: random.Random, prompt: list[ChatMessage]) -> None:
        self.sent: list[dict[str, Any]] = list(prompt)
        self._keeps_thoughts = draw.random() < 0.5

    def body(self) -> dict[str, Any]:
        return {"messages": self.sent, "tools": self.tools}

    def read(self, reply: Any) -> Said:
        message = reply["choices"][0]["message"]
        thought = message.get("reasoning_content", "")
        self.sent.append(message if self._keeps_thoughts else {**message, "reasoning_content": None})
        calls = message.get("tool_calls", ())
        return Said(message["content"] or "", thought, [(one["id"], *called(one["function"])) for one in calls])

    def answer(self, answers: list[tuple[str, str]]) -> None:
        self.sent += [{"role": "tool", "tool_call_id": one, "content": content} for one, content in answers]

    def ask(self, content: str) -> None:
        self.sent.append({"role": "user", "content": content})


class Responses:
    """A program that speaks Responses: the whole conversation, or what is new after a reply by its id."""

    path = "/v1/responses"
    tools: Any = [{"type": "function", **function} for function in FUNCTIONS]

    def __init__(self, draw: random.Random, prompt: list[ChatMessage]) -> None:
        self.sent: list[dict[str, Any]] = list(prompt)
        self._is_short, self._previous = draw.random() < 0.5, ""

    def body(self) -> dict[str, Any]:
        previous = {"previous_response_id": self._previous} if self._previous else {}
        return {"input": self.sent, "tools": self.tools, **previous}

    def read(self, reply: Any) -> Said:
        said = Said("", "", [])
        for item in reply["output"]:
            match item["type"]:
                case "message":
                    said.content += "".join(part["text"] for part in item["content"])
                case "reasoning":
                    said.thought += item["content"][0]["text"]
                case "function_call":
                    said.calls.append((item["call_id"], *called(item)))
        self.sent, self._previous = ([], reply["id"]) if self._is_short else ([*self.sent, *reply["output"]], "")
        return said

    def answer(self, answers: list[tuple[str, str]]) -> None:
        self.sent += [{"type": "function_call_output", "call_id": one, "output": content} for one, content in answers]

    def ask(self, content: str) -> None:
        self.sent.append({"role": "user", "content": content})


class Messages:
    """A program that speaks Anthropic's Messages."""

    path = "/v1/messages"
    tools: Any = [{"name": one["name"], "input_schema": one["parameters"]} for one in FUNCTIONS]

    def __init__(self, draw: random.Random, prompt: list[ChatMessage]) -> None:
        self._system = "".join(message["content"] for message in prompt if message["role"] == "system")
        self.sent: list[dict[str, Any]] = [message for message in prompt if message["role"] != "system"]

    def body(self) -> dict[str, Any]:
        system = {"system": self._system} if self._system else {}
        thinking = {"type": "enabled", "budget_tokens": 1024}
        return {"messages": self.sent, "tools": self.tools, "max_tokens": 1000, "thinking": thinking, **system}

    def read(self, reply: Any) -> Said:
        self.sent.append({"role": "assistant", "content": reply["content"]})
        said = Said("", "", [])
        for block in reply["content"]:
            match block["type"]:
                case "text":
                    said.content += block["text"]
                case "thinking":
                    said.thought += block["thinking"]
                case "tool_use":
                    said.calls.append((block["id"], block["name"], block["input"]))
        return said

    def answer(self, answers: list[tuple[str, str]]) -> None:
        blocks = [{"type": "tool_result", "tool_use_id": one, "content": content} for one, content in answers]
        self.sent.append({"role": "user", "content": blocks})

    def ask(self, content: str) -> None:
        self.sent.append({"role": "user", "content": content})


def called(function: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return function["name"], json.loads(function["arguments"])


DIALECTS: dict[str, type[Chat | Responses | Messages]] = {"chat": Chat, "responses": Responses, "messages": Messages}


async def play(family: Family, seed: int, boundary: TurnBoundary, dialect: str) -> bool:
    """Play an episode and assert what holds for each; True if the template renders all of it as the policy read it."""
    draw = random.Random(f"{family.name} {dialect} {seed}")
    is_plain = draw.random() < 0.6
    policy = ScriptedPolicy(msgspec.structs.replace(family, answers_calls=True), draw, is_plain=is_plain)
    prompt: list[ChatMessage] = [{"role": "user", "content": "Q" + words(draw, plain=is_plain)}]
    if draw.random() < 0.5:
        prompt.insert(0, {"role": "system", "content": "S" + words(draw, plain=True)})
    program = DIALECTS[dialect](draw, prompt)
    asked_first = msgspec.json.encode(Chat.tools).decode() if draw.random() < 0.5 else ""
    record = EpisodeRecord(text.encode_text(policy.tokenizer, Prompt(chat=prompt, tools=asked_first)))
    talk = Conversation(record, policy.sample, boundary, sampling=Sampling(max_tokens=1000), limits=LIMITS)
    gateway = Gateway("http://test")
    episode = gateway.open(talk, prompt, asked_first)
    app, truth, is_asked_again = GatewayApp(gateway), list(prompt), False
    for _ in range(draw.randint(1, 5)):
        policy.next_role = "tool" if draw.random() < 0.9 else "user"
        num_calls, num_thoughts = len(policy.calls), len(policy.thoughts)
        body = json.dumps(program.body()).encode()
        answer = await call(app, "POST", f"/e/{episode.key}{program.path}", body)
        assert answer.status == 200, answer.body
        said = program.read(answer.json)
        assert [one[1:] for one in said.calls] == [(name, {"a": value}) for name, value in policy.calls[num_calls:]]
        assert said.thought.strip() == "".join(policy.thoughts[num_thoughts:])
        truth.append(boundary.message(record.turns[-1].completion.completion_ids))
        if said.calls:
            answers = [(one[0], words(draw, plain=is_plain)) for one in said.calls]
            program.answer(answers)
            truth += [
                {"role": "tool", "tool_call_id": one, "name": policy.calls[-1][0], "content": content}
                for one, content in answers
            ]
        else:
            is_asked_again = True
            program.ask(words(draw, plain=is_plain))
            truth.append({"role": "user", "content": program.sent[-1]["content"]})
    return check(family, boundary, record, policy, truth, is_loose=is_asked_again or not is_plain)


def check(
    family: Family,
    boundary: TurnBoundary,
    record: EpisodeRecord,
    policy: ScriptedPolicy,
    truth: list[ChatMessage],
    *,
    is_loose: bool,
) -> bool:
    turns = record.turns
    assert [turn.completion.completion_ids for turn in turns] == policy.sampled
    assert [turn.parent for turn in turns[1:]] == list(range(len(turns) - 1))
    assert turns[0].parent in (FROM_PROMPT, FROM_NOTHING)
    parts = [(turn.context_ids, ids) for turn, ids in zip(turns, policy.sampled, strict=True)]
    begun = record.prompt_ids if turns[0].parent == FROM_PROMPT else []
    tail = boundary.after(truth[-1:], policy.sampled[-1])
    read = [*begun, *chain.from_iterable(chain.from_iterable(parts)), *tail]
    rendered = tokenizer(family.name).apply_chat_template(
        truth, tools=Chat.tools, add_generation_prompt=True, tokenize=False
    )
    is_same = bool(rendered == spelled(family, read))
    assert is_loose or rendered == spelled(family, read)
    return is_same


@pytest.mark.parametrize(
    "seeds", [range(FEW), pytest.param(range(FEW, MANY), marks=pytest.mark.long("many more seeds"))], ids=["few", "all"]
)
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_program_of_any_dialect_reads_what_the_template_renders(family: Family, dialect: str, seeds: range) -> None:
    boundary = make_boundary(tokenizer(family.name), tools=msgspec.json.encode(Chat.tools).decode())

    async def run() -> int:
        return sum([await play(family, seed, boundary, dialect) for seed in seeds])

    assert asyncio.run(run()) > len(seeds) // 12
