"""
An agent program: the task of hidden_sums.py, with the loop and the boxes on the program's side.

    environment.function = "examples/hidden_sums_agent.py:solve"                   called for each episode, or
    environment.command = ["python", "examples/hidden_sums_agent.py"]              started for each episode

It talks to the policy as to any server of OpenAI or Anthropic, with the standard library alone. A whole chat goes with
every request; the policy reads its own turns as it sampled them.
"""

import argparse
import asyncio
import json
import os
import re
from collections.abc import Callable
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

QUESTION = " How many now?"
ERROR = " error"
MAX_TURNS = 17
TIMEOUT_S = 600.0

Message = dict[str, Any]


class Server:
    """One connection, which is kept from turn to turn."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        self._path = parts.path
        self._connection = HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def request(self, method: str, path: str, body: Message) -> Any:
        """Return the decoded answer; ``path`` is below that of the URL."""
        self._connection.request(method, self._path + path, json.dumps(body), self._headers)
        response = self._connection.getresponse()
        text = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {self._path + path}: {response.status} {text.decode(errors='replace')}")
        return json.loads(text) if text else None

    def close(self) -> None:
        self._connection.close()


class Boxes:
    """Boxes that are left to add, and the total of the others."""

    def __init__(self, question: str, amounts: str) -> None:
        self._name, *self._left = question.removesuffix(QUESTION).split()
        self._amounts = dict(zip(self._left, amounts.split(), strict=True))
        self._looked_into = ""
        self._total = "0"

    def look(self, label: str) -> str:
        if label not in self._amounts:
            return ERROR
        self._looked_into = label
        return self._amounts[label]

    def add(self, terms: str) -> str:
        found = re.fullmatch(r"(\d+)([+-]\d+)", terms)
        total = int(found[1]) + int(found[2]) if found else -1
        if not 0 <= total < 100:
            return ERROR
        self._total = str(total)
        self._left = [label for label in self._left if label != self._looked_into]
        return f"={total}"

    def summary(self) -> str:
        self._looked_into = ""
        return " ".join([f"{self._name} so far {self._total}", *self._left]) + QUESTION


async def solve(
    task: Any, client: Any, *, compact_every: int = 0, dialect: str = "chat", max_turns: int = MAX_TURNS
) -> float:
    """
    Let the policy work on one task, and return its reward.

    Args:
        task: With ``messages``, ``answer`` and ``extra`` of the row.
        client: With ``base_url`` and ``key`` of the policy.
        compact_every: Turns after which a new chat begins with a summary; 0: never.
        dialect: ``chat``, ``responses`` or ``messages``.
        max_turns: Turns after which it gives up; with more than ``environment.max_turns`` a refusal ends it instead.
    """
    with closing(Server(client.base_url, client.key)) as server:
        return await play(task, partial(DIALECTS[dialect], server), compact_every, max_turns)


async def play(task: Any, ask: Callable[[list[Message]], str], compact_every: int, max_turns: int) -> float:
    messages = list(task.messages)
    boxes = Boxes(messages[-1]["content"], task.extra["amounts"])
    for turn in range(1, max_turns + 1):
        said = await asyncio.to_thread(ask, messages)
        match said.split():
            case [label, "?"]:
                observation = boxes.look(label)
            case [terms, "!"]:
                observation = boxes.add(terms)
            case [*_, "?" | "!"]:
                observation = ERROR
            case words:
                return float(words == ["####", task.answer])
        if compact_every and turn % compact_every == 0:
            messages = [{"role": "user", "content": boxes.summary()}]
        else:
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": observation}]
    return 0.0


def chat(server: Server, messages: list[Message]) -> str:
    """Text of the policy's next turn, asked for as in Chat Completions."""
    answer = server.request("POST", "/chat/completions", {"model": "policy", "messages": messages})
    return str(answer["choices"][0]["message"]["content"])


def responses(server: Server, messages: list[Message]) -> str:
    """The same as in Responses."""
    answer = server.request("POST", "/responses", {"model": "policy", "input": messages})
    said = [item for item in answer["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in said for part in item["content"])


def anthropic(server: Server, messages: list[Message]) -> str:
    """The same as in Anthropic's Messages."""
    answer = server.request("POST", "/messages", {"model": "policy", "messages": messages, "max_tokens": 64})
    return "".join(block["text"] for block in answer["content"])


DIALECTS = {"chat": chat, "responses": responses, "messages": anthropic}


def main() -> None:
    parser = argparse.ArgumentParser(description="Solve the task in $ASYNCRL_TASK and put its reward.")
    parser.add_argument("--compact-every", type=int, default=0)
    parser.add_argument("--dialect", choices=DIALECTS, default="chat")
    options = parser.parse_args()
    task = argparse.Namespace(**json.loads(Path(os.environ["ASYNCRL_TASK"]).read_text()))
    client = argparse.Namespace(base_url=os.environ["OPENAI_BASE_URL"], key=os.environ["OPENAI_API_KEY"])
    reward = asyncio.run(solve(task, client, **vars(options)))
    with closing(Server(os.environ["ASYNCRL_REWARD_URL"], client.key)) as server:
        server.request("PUT", "", {"reward": reward})


if __name__ == "__main__":
    main()
