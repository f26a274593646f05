"""
Return values of environments, checked and brought into the form of the pipe.

    step, reset      Step | the same as a dict | None            ─▶ {"messages", "reward", "done", "restart", "seat"}
    score, solve     number | {"score" or "reward": number, metrics} | None   ─▶ {"reward", "metrics"}

A reward may also be a list, with a number for each seat.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Union

from asyncrl.environment import Step
from asyncrl.messages.number import number, scalar
from asyncrl.messages.verdict_limits import problem_of

ROLES = ("system", "user", "assistant", "tool")
STEP = frozenset(field.name for field in dataclasses.fields(Step))
Reward = Union[float, list[float]]
MOST = 64 << 20
"""Characters in base64 of the pictures of one answer: a frame has room for several times as many."""
REWARD = ("score", "reward")
"""Names of the reward among the values of an episode."""


class BadValue(Exception):
    """A method returned something else than it should."""


def step_of(value: Any, method: str) -> dict[str, Any]:
    """Convert the value of ``step``; raises `BadValue`."""
    if isinstance(value, Step):
        value = {name: getattr(value, name) for name in STEP}
    if not isinstance(value, Mapping) or not STEP.issuperset(value):
        raise BadValue(f"{method} returned {shown(value)}, expected a Step, or a dict with some of {sorted(STEP)}")
    return {
        "messages": messages_of(value.get("messages"), method),
        "reward": _within(reward_of(value.get("reward", 0.0), f"{method} returned the reward"), {}, method),
        "done": _flag(value.get("done", False), f"{method} returned done"),
        "restart": _flag(value.get("restart", False), f"{method} returned restart"),
        "seat": _seat(value.get("seat", 0), method),
    }


def reset_of(value: Any) -> dict[str, Any]:
    """Convert the value of ``reset``: messages, a Step with messages, or None; raises `BadValue`."""
    if value is None or isinstance(value, list):
        return {"messages": messages_of(value, "reset")}
    return step_of(value, "reset")


def score_of(value: Any, method: str) -> dict[str, Any]:
    """Convert the value of ``score`` or of an agent program; raises `BadValue`."""
    if not isinstance(value, Mapping):
        reward = None if value is None else reward_of(value, f"{method} returned")
        return {"reward": _within(reward, {}, method), "metrics": {}}
    if len(given := [name for name in REWARD if value.get(name) is not None]) > 1:
        raise BadValue(f"{method} returned both score and reward, which are one number; name it once")
    reward = reward_of(value[given[0]], f"{method} returned {given[0]}") if given else None
    metrics = {
        str(name): number_of(one, f"{method} returned {name}") for name, one in value.items() if name not in REWARD
    }
    return {"reward": _within(reward, metrics, method), "metrics": metrics}


def messages_of(value: Any, method: str) -> list[dict[str, Any]]:
    """Check messages of a chat; raises `BadValue`."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadValue(f"{method} returned the messages {shown(value)}, expected a list")
    for message in value:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise BadValue(f'{method} returned the message {shown(message)}, expected {{"role": one of {ROLES}, ...}}')
    found = [
        {**message, "content": _content(message["content"], method)} if "content" in message else message
        for message in value
    ]
    parts = [part for message in found if isinstance(message.get("content"), list) for part in message["content"]]
    if (size := sum(len(part.get("data", "")) for part in parts)) > MOST:
        raise BadValue(
            f"{method} returned pictures of {size:,} characters in base64, expected at most {MOST:,}; show smaller ones"
        )
    return found


def _content(content: Any, method: str) -> str | list[dict[str, Any]] | None:
    """Check the content of a message; pictures become base64, which JSON has a form for. Raises `BadValue`."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise BadValue(f"{method} returned a message with the content {shown(content)}, expected text or parts")
    return [_part(part, method) for part in content]


def _part(part: Any, method: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    data = part.get("data") if kind == "image" else None
    if isinstance(data, (bytes, bytearray, memoryview)):
        return {"type": "image", "data": base64.b64encode(data).decode()}
    raise BadValue(
        f"{method} returned a message with the part {shown(part)}, expected "
        f'{{"type": "text", "text": ...}} or {{"type": "image", "data": bytes of a file}}'
    )


def number_of(value: Any, what: str) -> float:
    """Convert a finite `number`; raises `BadValue`."""
    found = number(value)
    if found is None or not math.isfinite(found):
        raise BadValue(f"{what} {shown(value)}, expected a finite number")
    return found


def reward_of(value: Any, what: str) -> Reward:
    """Convert a number, or a list with one for each seat; raises `BadValue`."""
    if isinstance(value, (list, tuple)):
        return [number_of(one, f"{what} {shown(value)}, and in it") for one in value]
    return number_of(value, what)


def _within(reward: Reward | None, metrics: dict[str, float], method: str) -> Reward | None:
    """The reward, if it and the metrics are within their limits; raises `BadValue`."""
    for one in reward if isinstance(reward, list) else [reward or 0.0]:
        if problem := problem_of(one, metrics, None):
            raise BadValue(f"{method} returned what cannot be trained: {problem}")
    return reward


def shown(value: Any) -> str:
    """Return the beginning of a value's text."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _seat(value: Any, method: str) -> int:
    seat = scalar(value)
    if type(seat) is not int or seat < 0:
        raise BadValue(f"{method} returned the seat {shown(value)}, expected 0, 1, ...")
    return seat


def _flag(value: Any, what: str) -> bool:
    flag = scalar(value)
    if not isinstance(flag, bool):
        raise BadValue(f"{what} {shown(value)}, expected True or False")
    return flag
