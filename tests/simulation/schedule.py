"""Runs the schedule of one seed, or of many seeds until one fails."""

import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from tests.simulation.faults import faults
from tests.simulation.invariants import Violation
from tests.simulation.plan import plan_of
from tests.simulation.world import World

COLLECT_EVERY = 50
"""Schedules between two garbage collections."""


class Outcome(Struct, frozen=True):
    """Totals of the schedules without a violation, and the first seed with one."""

    schedules: int
    wall_s: float
    cpu_s: float
    virtual_s: float
    records: int
    resumed: int
    """Trajectories that continued what was on disk of them."""
    started_over: int
    """Episodes whose environment could not be brought back."""
    judged_whole: int
    """Groups whose trajectories were judged together."""
    failed_seed: int | None = None
    violation: str = ""


def simulate(seed: int, *, is_traced: bool = False) -> World:
    """
    Run one schedule, deterministically.

    Raises:
        Violation: An invariant was violated.
    """
    world = World(plan_of(seed), is_traced=is_traced)
    world.run(faults)
    return world


def search(seeds: Iterable[int], *, is_traced: bool = False) -> Outcome:
    """Run the schedules of all seeds until one violates an invariant."""
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    schedules = records = resumed = started_over = judged_whole = 0
    virtual_s = 0.0
    failed_seed, sentence = None, ""
    with rarely_collecting():
        for seed in seeds:
            try:
                world = simulate(seed, is_traced=is_traced)
            except Violation as violation:
                failed_seed, sentence = seed, str(violation)
                break
            schedules += 1
            virtual_s += world.loop.time()
            records += len(world.disk.ledger.records)
            resumed += world.invariants.resumption.num_resumed
            started_over += world.invariants.resumption.num_started_over
            judged_whole += len(world.invariants.judged)
            if schedules % COLLECT_EVERY == 0:
                gc.collect()
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    totals = schedules, wall_s, cpu_s, virtual_s, records, resumed, started_over, judged_whole
    return Outcome(*totals, failed_seed=failed_seed, violation=sentence)


@contextmanager
def rarely_collecting() -> Iterator[None]:
    """Disable automatic garbage collection, which would run too often for short schedules."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
