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
"""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Client", "Said", "Step", "Task", "ToolCall"]

Message = dict[str, Any]
"""
``{"role": ..., "content": ...}``, and ``tool_calls`` or ``tool_call_id`` as in OpenAI's chat completions. ``content``
is a text, or a list of ``{"type": "text", "text": ...}`` and ``{"type": "image", "data": bytes of a file}``.
"""


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
    images: list[bytes] = field(default_factory=list)
    """Files of the prompt's pictures, in the order of the marks ``<image>`` in ``messages``."""


@dataclass(frozen=True)
class ToolCall:
    """A call that the policy wrote."""

    name: str
    arguments: dict[str, Any]
    id: str = ""
    problem: str = ""
    """Reason for which it cannot be read, such as invalid JSON; empty if it can."""


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


@dataclass(frozen=True)
class Step:
    """Answer of an environment to one turn."""

    messages: list[Message] = field(default_factory=list)
    """Read by the policy next, after its own turn; ignored once the episode is done."""
    reward: float = 0.0
    """Reward of the turn; the sum of all is that of the episode, unless ``score`` says otherwise."""
    done: bool = False
    restart: bool = False
    """
    ``messages`` begin a new context instead of following the turn, as after a summary: the policy reads nothing before
    them. They are a whole chat, with a system message if it needs one.
    """


@dataclass(frozen=True)
class Client:
    """Access of an agent program to the policy, as an OpenAI server: ``OpenAI(base_url=..., api_key=...)``."""

    base_url: str
    key: str
