"""times.jsonl of a run: what each node did in each stretch of it, a line for each step or for several."""

from typing import Any

from msgspec import Struct

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


def rounded(value: Any) -> Any:
    """Built-in values with every float in ten-thousandths."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return round(value, 4) if isinstance(value, float) else value
