"""
An OpenAI-compatible server, as strict as one: it wants its key, its model, and well-formed messages.

    Judge().running()     every chat is answered with the number of words in its last message
    python judge.py PORT  a process, which a test may kill: it rates what examples/judge_reward.py asks
"""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from asyncrl.runtime.http_server import accept

KEY = "sk-of-the-judge"
MODEL = "judge-7b"
ROLES = ("system", "user", "assistant", "tool")


class Judge:
    """
    Answers with ``reply`` of the last message.

    Args:
        trouble: Statuses of the first answers, with their headers; 0 closes the connection.
    """

    def __init__(
        self,
        reply: Callable[[str], str] = lambda text: str(len(text.split())),
        *,
        key: str = KEY,
        trouble: list[tuple[int, dict[str, str]]] | None = None,
    ) -> None:
        self.url = ""
        self.requests: list[Any] = []
        self.most_at_once = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._reply, self._key, self._trouble = reply, key, list(trouble or [])
        self._at_once = 0

    @asynccontextmanager
    async def running(self, port: int = 0) -> "AsyncIterator[Judge]":
        async with accept(self._serve, "127.0.0.1", port) as bound:
            self.url = f"http://127.0.0.1:{bound}/v1"
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            await self.may_answer.wait()
            status, answer, more = self._answer(first, headers, body)
            if status:
                more |= {"content-length": str(len(answer)), "content-type": "application/json", "connection": "close"}
                head = "".join(f"{name}: {value}\r\n" for name, value in more.items())
                writer.write(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # the client went away
        finally:
            self._at_once -= 1

    def _answer(self, first: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        method, path, _ = first.split(" ")
        if self._key and headers.get("authorization") != f"Bearer {self._key}":
            return 401, _error(f"Incorrect API key provided: {headers.get('authorization')}"), {}
        if (method, path) == ("GET", "/v1/models"):
            return 200, json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode(), {}
        if (method, path) != ("POST", "/v1/chat/completions"):
            return 404, b"<html>no such page</html>", {}
        request = json.loads(body)
        self.requests.append(request)
        if self._trouble:
            status, more = self._trouble.pop(0)
            return status, _error("come back later"), dict(more)
        if request.get("model") != MODEL:
            return 404, _error(f"The model `{request.get('model')}` does not exist"), {}
        messages = request.get("messages")
        if not messages or any(set(one) != {"role", "content"} or one["role"] not in ROLES for one in messages):
            return 400, _error("messages: expected a list of role and content"), {}
        text = self._reply(messages[-1]["content"])
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        made = {"id": "chatcmpl-1", "object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage}
        return 200, json.dumps(made).encode(), {}


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "server_error", "param": None, "code": None}}).encode()


def rating(question: str) -> str:
    """The rating of `rated` for the answer in a question of examples/judge_reward.py."""
    found = re.search(r"\nAnswer: (.*)\nReference: ", question, re.DOTALL)
    assert found is not None, question
    return str(rated(found[1]))


def rated(answer: str) -> int:
    """10 for an answer with an even number of characters, else 0: even a model that knows nothing gives both."""
    return 0 if len(answer) % 2 else 10


async def _main(port: int) -> None:
    async with Judge(rating).running(port):
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
