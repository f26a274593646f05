"""times.jsonl of a run: what each node did in each stretch of it, a line for each step or for several."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.errors import LedgerError
from asyncrl.files.json_lines import JsonLines
from asyncrl.messages.words import Role


class NodeTimes(Struct, frozen=True):
    """One node in one stretch of the run."""

    role: Role
    seconds: dict[str, float]
    """Seconds by activity: ``Activity`` but for ``idle``; ``waiting for ...``, ``loading``, ``away``, ``unknown``."""
    tokens: int = 0
    """Tokens sampled or trained."""
    memory_stall: float = 0.0
    """Largest share of ten seconds in which its machine waited for memory."""
    decode_steps: float = 0.0
    """Decode steps of a rollout's engine."""
    cores_busy: float = 0.0
    """Mean share of the cores of its machine that were busy, with any process."""


class TimesLine(Struct, frozen=True):
    """All nodes in one stretch of the run."""

    step: int
    """Last step that was trained in it; -1 before the first."""
    time_s: float
    """The run's time at its end, seconds."""
    span_s: float
    """Length of the stretch, seconds. The seconds of a node may end, or begin, up to one heartbeat earlier."""
    nodes: dict[str, NodeTimes]
    verdicts: int = 0
    """Rewards that came in it, and failed attempts at one."""


def append(path: Path, line: TimesLine) -> None:
    """Append a line, its seconds in tenths of milliseconds. Raises `RunFailed` if the disk refuses."""
    JsonLines(path).append(_rounded(msgspec.to_builtins(line)))


def read(path: Path) -> list[TimesLine]:
    """All lines so far; none of a run that has no such file. Raises `LedgerError` if it is damaged."""
    try:
        return [msgspec.convert(line, TimesLine) for line in JsonLines(path).read()]
    except msgspec.ValidationError as error:
        raise LedgerError(f"{path} has a line that describes no stretch of a run: {error}; remove it") from error


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return round(value, 4) if isinstance(value, float) else value
