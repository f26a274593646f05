"""Faults of a schedule, at random times."""

import asyncio
from collections.abc import Callable

from tests.simulation.wire import Weather
from tests.simulation.world import World


async def faults(world: World) -> None:
    """Inject faults until `Plan.faults_s`, then repair everything."""
    plan, dice = world.plan, world.dice
    running: list[asyncio.Task[None]] = []
    while (pause_s := dice.expovariate(1 / plan.fault_every_s)) + world.loop.time() < plan.faults_s:
        await asyncio.sleep(pause_s)
        world.disturbed()
        kind = dice.choices(KINDS, WEIGHTS)[0]
        name = dice.choice(list(world.processes))
        running.append(world.loop.create_task(kind(world, name)))
    await asyncio.sleep(max(plan.faults_s - world.loop.time(), 0.0))
    for fault in running:
        fault.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    world.trace.say("no more faults")
    world.network.weather = Weather(loss=0.0)
    world.transfers.break_next = 0
    world.disturbed()


async def kill(world: World, name: str) -> None:
    """SIGKILL; the supervisor restarts the process."""
    world.trace.say("is killed", name)
    world.processes[name].kill()


async def freeze(world: World, name: str) -> None:
    """SIGSTOP for a while; longer than the node TTL in some cases."""
    process = world.processes[name]
    world.trace.say("is frozen", name)
    process.freeze()
    try:
        await asyncio.sleep(world.dice.choice([0.3, 1.0, 2.0, 4.0]))
    finally:
        world.trace.say("is thawed", name)
        process.thaw()
        world.disturbed()


async def cut_off(world: World, name: str) -> None:
    """Cut the process off the network for a while."""
    holds = world.dice.random() < 0.5
    world.trace.say(f"is cut off; frames are {'held' if holds else 'lost'}", name)
    world.network.cut(name, holds=holds)
    try:
        await asyncio.sleep(world.dice.choice([0.3, 1.0, 2.0, 4.0]))
    finally:
        world.trace.say("is reachable", name)
        world.network.mend(name)
        world.disturbed()


async def jump(world: World, name: str) -> None:
    """Move the process's clock forward, as a monotonic clock may do."""
    skew_s = world.dice.choice([1.8, 1.8, 60.0])
    world.trace.say(f"its clock jumps by {skew_s:g} s", name)
    world.processes[name].skew_s += skew_s


async def fill_the_disk(world: World, name: str) -> None:
    """Let all writes fail for a while."""
    world.trace.say("the disk is full")
    world.disk.is_full = True
    try:
        await asyncio.sleep(world.dice.uniform(0.1, 2.0))
    finally:
        world.trace.say("the disk has room")
        world.disk.is_full = False
        world.disturbed()


async def damage(world: World, name: str) -> None:
    """Damage the newest checkpoint and kill the trainer; only once, because a run keeps two checkpoints."""
    newest = world.checkpoints.newest()
    is_last = newest is not None and newest.step == world.invariants.num_steps  # No trainer reads the last one.
    if not (world.was_damaged or is_last) and world.checkpoints.damage():
        world.was_damaged = True
        world.trace.say("the newest checkpoint is damaged")
        await kill(world, "trainer")


async def break_transfers(world: World, name: str) -> None:
    """Let the next members of transfers fail."""
    world.transfers.break_next += world.dice.randint(1, 3)
    world.trace.say(f"{world.transfers.break_next} parts of transfers will break")


async def ask_to_leave(world: World, name: str) -> None:
    """SIGTERM; the supervisor restarts the process."""
    world.trace.say("is told to stop", name)
    world.stopping[name].set()


Fault = Callable[[World, str], "asyncio._CoroutineLike[None]"]
KINDS = [kill, freeze, cut_off, jump, fill_the_disk, damage, break_transfers, ask_to_leave]
WEIGHTS = [8, 3, 3, 2, 1, 1, 1, 1]
