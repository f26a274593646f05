"""
The processes of a run: real actors, real greetings, real sessions; an engine, a verifier and a learner that only count.

As `asyncrl.node.rollout`, `.reward` and `.trainer`, without what loads models.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Protocol

from asyncrl.actor.zmq_link import ZmqLink
from asyncrl.client.handshake import Identity, join, spool_link
from asyncrl.config.sections import from_json
from asyncrl.errors import VerifierError
from asyncrl.messages import PROTOCOL, Hello, Member, PutItem, Role, Welcome
from asyncrl.node.runner import serve, through_restarts
from asyncrl.reward.actor import RewardActor
from asyncrl.reward.verifier import Verdict, VerifierInput
from asyncrl.rollout.actor import RolloutActor
from asyncrl.rollout.generations import Generations
from asyncrl.trainer.actor import Start, TrainerActor
from asyncrl.trainer.packing.step import Step, TrajectoryInfo
from tests.simulation.checkpoints import CheckpointFolder, Trained
from tests.simulation.disk import Disk
from tests.simulation.engine import SimEngine
from tests.simulation.invariants import Invariants
from tests.simulation.plan import ADDRESS, Plan
from tests.simulation.transfers import Publisher, Receiver, Transfers
from tests.simulation.virtual_time import PROCESS

WAIT_S = 5.0
"""For a broker to answer."""
PLAN_HASH = "plan"


class World(Protocol):
    """What nodes need of the world around them."""

    plan: Plan
    dice: Random
    invariants: Invariants
    transfers: Transfers
    checkpoints: CheckpointFolder
    waiting: dict[str, Callable[[], tuple[str, list[PutItem]]]]
    disk: Disk
    directory: object

    def identity(self, role: Role, node: str) -> Identity:
        """A new one."""


def member(who: Identity) -> Member:
    """As transfers name it."""
    return Member(who.node, who.incarnation)


# ── rollout ─────────────────────────────────────────────────────────────────────────────────


async def run_rollout(world: World, who: Identity, stopping: asyncio.Event) -> None:
    """A rollout's process."""
    link, welcome = await join(ADDRESS, who, WAIT_S)
    await asyncio.sleep(world.dice.uniform(0.0, 0.5))
    engine: Any = SimEngine(world.plan, world.dice, world.invariants.decodes_with)
    in_hand = Generations(engine, who.node, PROCESS.get().clock)

    def say(who: Identity) -> Hello:
        return Hello(PROTOCOL, who.role, who.node, who.incarnation, in_hand.held(), in_hand.policy_version)

    session = partial(_roll_out, world, engine, in_hand, stopping)
    try:
        await through_restarts(session, who, link, welcome, WAIT_S, say=say)
    finally:
        await in_hand.aclose()


async def _roll_out(
    world: World,
    engine: Any,
    in_hand: Generations,
    stopping: asyncio.Event,
    who: Identity,
    link: ZmqLink,
    welcome: Welcome,
) -> None:
    config = from_json(welcome.config)
    spool = spool_link(welcome, who)
    actor = RolloutActor(
        engine,
        link,
        spool,
        node=who.node,
        incarnation=who.incarnation,
        slots=config.rollout.slots,
        group_size=config.schedule.group_size,
        receiver=Receiver(world.transfers, member(who)),
        layout_hash=PLAN_HASH,
        partial_rollout=config.schedule.partial_rollout,
        progress_every_s=config.rollout.progress_every_s,
        in_hand=in_hand,
        clock=PROCESS.get().clock,
    )
    world.waiting[who.node] = lambda: (who.incarnation, list(in_hand.unsettled))
    try:
        await serve(
            actor,
            link,
            beat_s=welcome.beat_s,
            stopping=stopping,
            drain=lambda: actor.drain(config.rollout.drain_s),
        )
    finally:
        await spool.aclose()


# ── reward ──────────────────────────────────────────────────────────────────────────────────


class SimPool:
    """In the place of `WorkerPool`."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def judge(self, sample: VerifierInput) -> Verdict:
        """As `WorkerPool.judge`."""
        dice = self._world.dice
        await asyncio.sleep(dice.expovariate(1 / 0.02))
        if dice.random() < self._world.plan.failure:
            raise VerifierError("the verifier raised", retryable=dice.random() < 0.7)
        score = score_of(int(sample.completion), self._world.plan.config.schedule.group_size)
        return Verdict(reward=score, metrics={"correct": score})


def score_of(first_token: int, group_size: int) -> float:
    """One trajectory of a group is worse than the others; but every third group is right throughout."""
    group_id, index = divmod(first_token, group_size)
    return float(index > 0 or group_id % 3 == 0)


async def run_reward(world: World, who: Identity, stopping: asyncio.Event) -> None:
    """A reward node's process."""
    link, welcome = await join(ADDRESS, who, WAIT_S)
    await through_restarts(partial(_judge, world, stopping), who, link, welcome, WAIT_S)


async def _judge(world: World, stopping: asyncio.Event, who: Identity, link: ZmqLink, welcome: Welcome) -> None:
    spool = spool_link(welcome, who)
    pool: Any = SimPool(world)
    actor = RewardActor(pool=pool, link=link, spool=spool, max_in_hand=4, clock=PROCESS.get().clock)
    try:
        await serve(actor, link, beat_s=welcome.beat_s, stopping=stopping)
    finally:
        await spool.aclose()


# ── trainer ─────────────────────────────────────────────────────────────────────────────────


class SimLearner:
    """Weights that know what they were trained on."""

    def __init__(self, world: World, trained: Trained) -> None:
        self._world = world
        self.trained = trained

    def owners(self, described: Sequence[TrajectoryInfo]) -> list[int]:
        """As `Learner.owners`."""
        return [0] * len(described)

    def train(self, trained: Step, policy_version: int | None) -> dict[str, float]:
        """As `Learner.train`."""
        samples = list(trained.trajectories.values())
        step = len(self.trained)
        if PROCESS.get().is_alive:
            self._world.invariants.trains(step, samples, self.trained)
        self.trained += ((step, tuple(dict.fromkeys(sample.group_id for sample in samples))),)
        return {"num_tokens": 1.0, "loss": 0.5}

    def named_weights(self) -> Any:
        """As `Learner.named_weights`."""
        return self.trained

    def snapshot(self) -> Any:
        """As `Learner.snapshot`."""
        return self.trained


async def run_trainer(world: World, who: Identity, stopping: asyncio.Event) -> None:
    """A trainer's process."""
    link, welcome = await join(ADDRESS, who, WAIT_S)
    await through_restarts(partial(_train, world, stopping), who, link, welcome, WAIT_S)


async def _train(world: World, stopping: asyncio.Event, who: Identity, link: ZmqLink, welcome: Welcome) -> None:
    await asyncio.sleep(world.dice.uniform(0.0, 0.5))
    found = world.checkpoints.newest()
    learner: Any = SimLearner(world, found.trained if found else ())
    start = Start(found.step, found.policy_version, f"step_{found.step:06d}", found.stepped) if found else Start()
    spool = spool_link(welcome, who)
    publisher: Any = Publisher(world.transfers, member(who))
    nothing: Any = None
    folder: Any = world.checkpoints
    actor = TrainerActor(
        from_json(welcome.config),
        learner,
        publisher,
        link,
        spool,
        tokenizer=nothing,
        layout_hash=PLAN_HASH,
        checkpoints=folder,
        start=start,
        clock=PROCESS.get().clock,
    )
    try:
        await serve(actor, link, beat_s=welcome.beat_s, stopping=stopping)
    finally:
        await spool.aclose()
