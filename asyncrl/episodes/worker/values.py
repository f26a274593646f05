"""
Return values of environments, checked and brought into the form of the pipe.

    step, reset      Step | the same as a dict | None                 ─▶ {"messages", "reward", "done", "restart"}
    score, solve     number | {"score": number, metrics} | None       ─▶ {"reward", "metrics"}
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from asyncrl.environment import Step
from asyncrl.messages.number import number, scalar

ROLES = ("system", "user", "assistant", "tool")
STEP = frozenset(field.name for field in dataclasses.fields(Step))


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
        "reward": number_of(value.get("reward", 0.0), f"{method} returned the reward"),
        "done": _flag(value.get("done", False), f"{method} returned done"),
        "restart": _flag(value.get("restart", False), f"{method} returned restart"),
    }


def reset_of(value: Any) -> dict[str, Any]:
    """Convert the value of ``reset``: messages, a Step with messages, or None; raises `BadValue`."""
    if value is None or isinstance(value, list):
        return {"messages": messages_of(value, "reset")}
    return step_of(value, "reset")


def score_of(value: Any, method: str) -> dict[str, Any]:
    """Convert the value of ``score`` or of an agent program; raises `BadValue`."""
    if not isinstance(value, Mapping):
        return {"reward": None if value is None else number_of(value, f"{method} returned"), "metrics": {}}
    metrics = {str(name): number for name, number in value.items() if name != "score"}
    score = value.get("score")
    return {
        "reward": None if score is None else number_of(score, f"{method} returned score"),
        "metrics": {name: number_of(number, f"{method} returned {name}") for name, number in metrics.items()},
    }


def messages_of(value: Any, method: str) -> list[dict[str, Any]]:
    """Check messages of a chat; raises `BadValue`."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadValue(f"{method} returned the messages {shown(value)}, expected a list")
    for message in value:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise BadValue(f'{method} returned the message {shown(message)}, expected {{"role": one of {ROLES}, ...}}')
        if not isinstance(message.get("content"), (str, type(None))):
            raise BadValue(f"{method} returned a message with the content {shown(message['content'])}, expected text")
    return value


def number_of(value: Any, what: str) -> float:
    """Convert a finite `number`; raises `BadValue`."""
    found = number(value)
    if found is None or not math.isfinite(found):
        raise BadValue(f"{what} {shown(value)}, expected a finite number")
    return found


def shown(value: Any) -> str:
    """Return the beginning of a value's text."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _flag(value: Any, what: str) -> bool:
    flag = scalar(value)
    if not isinstance(flag, bool):
        raise BadValue(f"{what} {shown(value)}, expected True or False")
    return flag
