"""An HTTP service with scripted answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asyncrl.runtime.http_server import accept


class Service:
    """Gives the answers in order, then repeats the last one."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        self._answers = list(answers)
        self.url = ""
        self.requests: list[Any] = []
        self.headers: list[str] = []

    @asynccontextmanager
    async def running(self) -> "AsyncIterator[Service]":
        """Listen on a free port."""
        async with accept(self._serve, "127.0.0.1", 0) as port:
            self.url = f"http://127.0.0.1:{port}/judge"
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")
        )
        self.headers.append(head)
        self.requests.append(json.loads(await reader.readexactly(length)))
        status, body = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if status:  # 0 closes the connection instead
            answer = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body.encode())}\r\nconnection: close\r\n\r\n{body}"
            writer.write(answer.encode())
            await writer.drain()
