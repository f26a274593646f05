"""`asyncrl plan --memory`: formats a memory plan for a terminal."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from asyncrl.runtime.machine import format_bytes
from asyncrl.terminal import aligned

if TYPE_CHECKING:  # they import torch
    from asyncrl.runtime.memory import MemoryPlan
    from asyncrl.trainer.memory import Phase


def memory_table(plan: "MemoryPlan", name: str) -> str:
    """Bytes of every phase and of its parts, on a device and on a host; ``name`` is the title."""
    where = "process" if plan.device == "cpu" else f"{plan.device} device"
    lines = [
        f"{name}: trainer of {plan.ranks} ranks and {plan.replicas} rollouts a machine, whose host needs "
        f"{format_bytes(plan.host)}",
        "",
        *aligned([["", f"each {where}", "host"], *_rows(plan)], right=[1, 2]),
        "",
        "assumptions",
        *(f"  - {assumption}" for assumption in plan.assumptions),
        *(["", f"does not fit: {plan.problem}"] if plan.problem else []),
    ]
    return "\n".join(lines)


def _rows(plan: "MemoryPlan") -> Iterator[list[str]]:
    for phase in plan.trainer:
        yield from _phase(f"trainer, {phase.name}", phase)
    yield from _phase("one rollout", plan.rollout)


def _phase(title: str, phase: "Phase") -> Iterator[list[str]]:
    yield [title, format_bytes(phase.device), format_bytes(phase.host)]
    for part in phase.parts:
        yield [f"  {part.name}", *(format_bytes(value) if value else "" for value in (part.device, part.host))]
