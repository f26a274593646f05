"""
Environments of episodes: what answers the policy between its turns.

Interface for environments, agent programs and tools, which run in processes of their own, under an interpreter that
need not have any package of asyncrl. So this module and ``worker/`` import the standard library alone.

    class Boxes:                                    # environment.function = "boxes.py:Boxes"; one instance an episode
        tools = [look, add]                         # optional: typed functions that the policy may call
        resume = "replay"                           # or "snapshot" (with snapshot and restore) or "none", the default

        async def reset(self, task): ...            # -> messages after the prompt, or None
        async def step(self, said): return Step(messages=[{"role": "tool", "content": "+5"}], reward=0.0, done=False)
        async def score(self): ...                  # optional: a number, or a dict with "score" and metrics
        async def close(self): ...                  # optional; always called, with a deadline

    async def solve(task, client): ...              # an agent program; client.base_url and client.key are the policy's

Every method may also be a plain function. An exception fails the episode, which is tried again; it is never a reward.

Models of ``[models]`` are asked by their names, here and in reward functions:

    said = await models()["judge"].chat([{"role": "user", "content": "..."}], temperature=0)
"""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional, Protocol, Union
from urllib.parse import urlsplit

__all__ = [
    "Client",
    "Container",
    "ModelClient",
    "ModelClients",
    "ModelFailed",
    "Output",
    "Said",
    "Step",
    "Task",
    "ToolCall",
    "models",
]

Message = dict[str, Any]
"""
``{"role": ..., "content": ...}``, and ``tool_calls`` or ``tool_call_id`` as in OpenAI's chat completions. ``content``
is a text, or a list of ``{"type": "text", "text": ...}`` and ``{"type": "image", "data": bytes of a file}``.
"""

# ── models ────────────────────────────────────────────────────────────────────────────────────

VARIABLE = "ASYNCRL_MODELS"
"""Variable with the addresses of the models: JSON of ``{NAME: {"base_url": ..., "key": ...}}``."""
OK = 200
REFUSED = range(400, 500)
"""Statuses with which a server refuses a request that would be refused again."""


class ModelFailed(Exception):
    """
    A model gave no answer that can be used; the message names it and the cause. Let it pass: the episode or the
    verdict fails, and is tried again if ``retryable``.
    """

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


@dataclass(frozen=True)
class ModelClient:
    """Access to one model of ``[models]``, as an OpenAI server: ``OpenAI(base_url=..., api_key=...)``."""

    name: str
    base_url: str = field(repr=False)
    key: str = field(repr=False)

    async def chat(self, messages: "list[Message]", **params: Any) -> str:
        """
        Text of the model's answer to a chat.

        Args:
            params: Further fields of the request, such as ``temperature`` and ``max_tokens``.

        Raises:
            ModelFailed: It was away until the deadline of its settings, refused the request, or answered without text.
        """
        status, answer = await _post(f"{self.base_url}/chat/completions", self.key, {"messages": messages, **params})
        if status != OK:
            cause = answer.get("error") if isinstance(answer, dict) else answer
            cause = cause.get("message", cause) if isinstance(cause, dict) else cause
            said = cause if status not in REFUSED else f"model {self.name!r} refused the request: {status}: {cause}"
            raise ModelFailed(f"{said}", retryable=status not in REFUSED)
        try:
            text = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            text = None
        if not isinstance(text, str):
            raise ModelFailed(f"model {self.name!r} answered without text: {json.dumps(answer)[:200]}")
        return text


class ModelClients(dict[str, ModelClient]):
    """Models by name."""

    def __missing__(self, name: str) -> ModelClient:
        known = f"it has {', '.join(self)}" if self else "it has none for this code"
        raise KeyError(f"there is no model {name!r}: add [models.{name}] to the run file; {known}")


def models() -> ModelClients:
    """The models of the run file that this code may ask."""
    told = json.loads(os.environ.get(VARIABLE) or "{}")
    return ModelClients({name: ModelClient(name, access["base_url"], access["key"]) for name, access in told.items()})


async def _post(url: str, key: str, request: "dict[str, Any]") -> "tuple[int, Any]":
    """Status and decoded answer of one request to the node, which repeats it until its deadline."""
    parts, body = urlsplit(url), json.dumps(request).encode()
    head = [
        f"POST {parts.path} HTTP/1.1",
        f"Host: {parts.netloc}",
        f"Authorization: Bearer {key}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    writer = None
    try:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        await writer.drain()
        status = int((await reader.readuntil(b"\r\n")).split()[1])
        while (await reader.readuntil(b"\r\n")).strip():
            pass  # a header; the connection ends with the body
        answer = await reader.read()
        return status, json.loads(answer)
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise ModelFailed(f"the node's own server of models gave no answer: {type(error).__name__}: {error}") from error
    finally:
        if writer is not None:
            writer.close()


# ── environments ──────────────────────────────────────────────────────────────────────────────


class Output(NamedTuple):
    """End of a program in a container."""

    code: int
    """Exit code; 128 and the signal's number if a signal ended it."""
    stdout: bytes
    stderr: bytes


class Container(Protocol):
    """
    The container of an episode, fresh when the episode begins and removed with it: ``[environment.container]``.

    Every method raises `ContainerFailed` if the runtime fails or the container is gone: the episode is then continued
    in another container.
    """

    name: str
    """Name of the container, for the runtime's own command line."""
    program: str
    """Path of that command line, such as ``/usr/bin/podman``; empty for a runtime without one."""
    label: str
    """``KEY=VALUE``; containers, volumes and networks that carry it are removed after the rollout's end."""

    async def run(self, argv: Sequence[str], input: bytes = b"", timeout_s: float = 60.0) -> Output:  # noqa: A002
        """Run a program to its end; `TimeoutError` if it was killed for its time. Long output is cut, and says so."""

    async def put(self, path: str, data: bytes) -> None:
        """Write a file, and the folders above it."""

    async def get(self, path: str) -> bytes:
        """Read a file; raises `FileNotFoundError`."""


@dataclass(frozen=True)
class Task:
    """Argument of ``reset`` and ``solve``: the row of the prompt, and which of its episodes this is."""

    messages: list[Message]
    """The prompt as a chat; a plain text is one message of the user."""
    answer: str = ""
    data_source: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    """``extra`` of the row."""
    seed: int = 0
    """Seed, the same each time this episode is begun, on every node. Below 2**32, as ``numpy.random.seed`` wants it."""
    name: str = ""
    """Name of the episode, unique in the run, such as ``run/train/17/3``: a label for sandboxes and logs."""
    container: Optional[Container] = None
    """The container of this episode; None without ``[environment.container]``."""
    images: list[bytes] = field(default_factory=list)
    """Files of the prompt's pictures, in the order of the marks ``<image>`` in ``messages``."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Tools of the row in OpenAI's form, which the policy reads; empty if it has none, and reads the environment's."""

    @property
    def models(self) -> ModelClients:
        """Models of ``[models]`` by name: ``await task.models["judge"].chat(messages)``."""
        return models()


@dataclass(frozen=True)
class ToolCall:
    """A call that the policy wrote."""

    name: str
    arguments: dict[str, Any]
    id: str = ""
    problem: str = ""
    """Reason for which it cannot be read, such as invalid JSON; empty if it can."""
    fault: str = ""
    """Kind of what is wrong: ``json``, ``form``, ``unclosed``, ``name`` or ``arguments``; empty if nothing is."""


@dataclass(frozen=True)
class Said:
    """One turn of the policy."""

    text: str
    """Text of the turn, without special tokens."""
    content: str = ""
    """The text without its thought and calls of tools."""
    thought: str = ""
    """Thought of a reasoning model before the answer, without tags; it is in ``text`` too."""
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str = "stop"
    """``length`` if the turn was cut at its limit."""
    seat: int = 0
    """Seat that spoke."""


@dataclass(frozen=True)
class Step:
    """Answer of an environment to one turn."""

    messages: list[Message] = field(default_factory=list)
    """Read by the policy next, after its own turn; ignored once the episode is done."""
    reward: Union[float, Sequence[float]] = 0.0
    """
    Reward of the turn; the sum of all is that of the episode, unless ``score`` says otherwise. With several seats it is
    that of the seat which has spoken; a list has one for each seat.
    """
    done: bool = False
    restart: bool = False
    """
    ``messages`` begin a new context instead of following the turn, as after a summary: the policy reads nothing before
    them. They are a whole chat, with a system message if it needs one.
    """
    seat: int = 0
    """
    Seat that speaks next, below ``environment.seats``. ``messages`` follow what this seat has read and said before; the
    first of another seat than 0 begin its context, as with ``restart``.
    """


@dataclass(frozen=True)
class Client:
    """Access of an agent program to the policy, as an OpenAI server: ``OpenAI(base_url=..., api_key=...)``."""

    base_url: str
    key: str

    def seat(self, number: int) -> "Client":
        """Access to the policy in another seat of this episode, which reads nothing of what this one does."""
        return Client(f"{self.base_url.removesuffix('/v1')}/seats/{number}/v1", self.key)
