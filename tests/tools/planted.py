"""Runs with a planted bottleneck: the real broker and actors of the simulation, without faults, in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from asyncrl.config.run_file import decode
from asyncrl.tools.why import Attribution, Diagnosis, Evidence, attribute, diagnose
from tests.simulation.faults import kill
from tests.simulation.plan import ADDRESS, CALM, Pace, Plan
from tests.simulation.world import World

Faults = Callable[[World], Coroutine[Any, Any, None]]
STEPS = 30


async def none(_world: World) -> None:
    """Let the run go on."""


async def flapping(world: World) -> None:
    for _ in range(8):
        await asyncio.sleep(2.0)
        await kill(world, "rollout-1")


def a_plan(pace: Pace, settings: dict[str, dict[str, Any]], *, token_s: float, num_rollouts: int) -> Plan:
    """A run whose trainer needs .1 s for a step of 4 groups of 4, and whose 2 rollouts have 8 slots each."""
    sections: dict[str, dict[str, Any]] = {
        "run": {"steps": STEPS},
        "model": {"path": "model"},
        "data": {"train": "train", "held_out": "held_out" if pace.num_held_out > 1 else ""},
        "schedule": {"groups_per_step": 4, "group_size": 4, "staleness": 2.0, "lease_s": 60.0},
        "checkpoint": {"every_steps": 10},
        "rollout": {"slots": 8},
        "weights": {"deadline_s": 20.0},
        "broker": {"bind": ADDRESS, "beat_s": 0.2, "node_ttl_s": 3.0, "samples": False},
    }
    for name, values in settings.items():
        sections[name] = sections.get(name, {}) | values
    return Plan(
        seed=7,
        config=decode(sections),
        num_rollouts=num_rollouts,
        weights=["collective"] * num_rollouts,
        num_rewards=1,
        weather=CALM,
        faults_s=20.0,
        fault_every_s=1.0,
        failure=0.0,
        damage=0.0,
        blindness=0.0,
        token_s=token_s,
        lost_environments=0.0,
        pace=pace,
        failpoint=None,
    )


def played(
    settings: dict[str, dict[str, Any]] | None = None,
    faults: Faults = none,
    *,
    token_s: float = 0.02,
    num_rollouts: int = 2,
    train_s: float = 0.1,
    **pace: float,
) -> World:
    plan = a_plan(replace(Pace(train_s=train_s), **pace), settings or {}, token_s=token_s, num_rollouts=num_rollouts)
    world = World(plan)
    world.run(faults)
    return world


def times_of(world: World) -> Attribution:
    return attribute(world.directory.times)


def diagnosis_of(world: World) -> Diagnosis:
    schedule = world.plan.config.schedule
    num_groups = len(world.directory.read_metrics()) * schedule.groups_per_step
    evidence = Evidence(world.directory.events, num_groups, schedule.staleness_bound)
    found = diagnose(attribute(world.directory.times, is_steady=True), evidence)
    assert found is not None
    return found
