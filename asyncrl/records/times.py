"""
times.jsonl of a run: what each node did in each stretch of it, a line for each step or for several; and the five kinds
of what it does, for whoever shows it.

    works       sampling, training, grading, ...        waits for a neighbour   for sampling, grading, weights, ...
    moves data  loading, swapping, storing, ...         waits for room          for the trainer, whose step makes it
    away        lost, or with nothing left to do
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

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
    memory: float = 0.0
    """Share of its machine's memory that was in use at the end; 0 if unknown, as in the next two."""
    device_memory: float = 0.0
    """Share of its device's memory, likewise."""
    disk: float = 0.0
    """Share of the disk with its working folder, likewise."""
    device_busy: float = 0.0
    """Share of the last moments in which its device computed, likewise."""


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

    @property
    def is_start(self) -> bool:
        """True if a trainer loaded in it, as it does when a run begins or goes on."""
        return any(node.role == "trainer" and "loading" in node.seconds for node in self.nodes.values())


def without_starts(lines: Sequence[TimesLine]) -> list[TimesLine]:
    """The stretches after the first step in which no trainer loaded; all if there is none."""
    first = next((number for number, line in enumerate(lines) if line.step >= 0), 0)
    return [line for line in lines[first + 1 :] if line.span_s > 0 and not line.is_start] or list(lines)


# ── kinds ─────────────────────────────────────────────────────────────────────────────────────

Kind = Literal["works", "moves data", "waits for a neighbour", "waits for room", "away"]
KINDS: tuple[Kind, ...] = get_args(Kind)
KIND_OF: Mapping[str, Kind] = {
    **dict.fromkeys(("sampling", "grading", "training", "serving users", "working"), "works"),
    **dict.fromkeys(
        ("loading", "swapping", "storing", "fetching", "publishing", "checkpointing"), "moves data"
    ),
    **dict.fromkeys(("waiting for the trainer", "waiting for free slots"), "waits for room"),
    **dict.fromkeys(
        ("away", "unknown", "other", "waiting for the end of the run", "waiting for an operator"), "away"
    ),
}  # fmt: skip
"""
Kind of each activity; any other waits for a neighbour, such as ``asleep``, whose devices the trainer has, and
``environment``, in which the engine of a rollout has nothing to sample.
"""
APART = ("loading", "waiting for the end of the run", "waiting for an operator")
"""Activities that say nothing about a run's pace."""
WAITS: tuple[Kind, ...] = ("waits for a neighbour", "waits for room")


def kind_of(activity: str) -> Kind:
    return KIND_OF.get(activity, "waits for a neighbour")


def waited_share(seconds: Mapping[str, float]) -> float:
    """Part of 1 of the seconds by activity in which a node waited; 0 without any."""
    total_s = sum(seconds.values())
    waited_s = sum(value for activity, value in seconds.items() if kind_of(activity) in WAITS)
    return waited_s / total_s if total_s > 0 else 0.0


def rounded(value: Any) -> Any:
    """Built-in values with every float in ten-thousandths."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return round(value, 4) if isinstance(value, float) else value
