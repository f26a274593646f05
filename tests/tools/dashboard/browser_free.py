"""A client that calls an ASGI app directly, and sample rows."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from asyncrl.messages.trajectory import Image, Span, Turn
from asyncrl.records.samples import SampleRow, SamplesWriter
from asyncrl.wire.http import App

HOST = (b"host", b"127.0.0.1:8460")


class Answer:
    def __init__(self, sent: Sequence[Any]) -> None:
        self.status: int = sent[0]["status"]
        self.headers: dict[str, str] = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        self.body: bytes = b"".join(event.get("body", b"") for event in sent[1:])

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def call(
    app: App, path: str, *, method: str = "GET", headers: Sequence[tuple[bytes, bytes]] = (HOST,), root: str = ""
) -> Answer:
    """One request; ``path`` may have a query."""
    parts = urlsplit(path)
    scope = {
        "type": "http", "method": method, "path": root + parts.path, "query_string": parts.query.encode(),
        "headers": list(headers), "root_path": root,
    }  # fmt: skip
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    async def receive() -> Any:
        await asyncio.Event().wait()

    await app(scope, receive, send)
    return Answer(sent)


def get(app: App, path: str, **options: Any) -> Answer:
    return asyncio.run(call(app, path, **options))


def a_sample(step: int = 0, group_id: int = 0, index: int = 0, **fields: Any) -> SampleRow:
    """A sample of three tokens, the last two of a newer version."""
    values: dict[str, Any] = {
        "prompt": "2 + 3 = ?",
        "completion": "5",
        "answer": "5",
        "reward": 1.0,
        "finish_reason": "stop",
        "spans": [Span(step, 0, 1), Span(step + 1, 1, 3)],
        "oldest_version": step,
        "staleness": 1,
        "node": "rollout-0",
        "completion_ids": np.array([3, 4, 5], "<i4").tobytes(),
        "behavior_logprobs": np.array([-0.5, -1.0, 0.0], "<f4").tobytes(),
    }
    return SampleRow(step=step, group_id=group_id, index=index, **values | fields)


def an_episode(step: int = 0, **fields: Any) -> SampleRow:
    """Two turns, of one and of two tokens."""
    turns = [Turn(-1, 0, 1, text="look"), Turn(0, 1, 2, observation="left 2", text="five")]
    return a_sample(step, turns=turns, context_ids=np.array([9], "<i4").tobytes(), **fields)


def a_picture(content: bytes) -> dict[str, Any]:
    return {"images": [Image(bytes(32), 2, 2, len(content))], "image_files": [content]}


def write(folder: Path, *rows: SampleRow, held_out: bool = False) -> Path:
    """Write a samples file of the step of the first row."""
    writer = SamplesWriter(folder)
    folder.mkdir(exist_ok=True)
    step = rows[0].step
    return writer.write(writer.answers_path(step) if held_out else writer.path(step), rows)
