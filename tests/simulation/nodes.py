"""
Processes of a run: real actors, handshakes and sessions, with a fake engine, verifier and learner.

Like `asyncrl.runtime.rollout`, `.reward` and `.trainer`, without loading models.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Protocol

from asyncrl.errors import LinkError, VerifierError
from asyncrl.messages.session import Hello
from asyncrl.messages.spool import PutItem
from asyncrl.messages.weights import Member
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import Role
from asyncrl.reward.actor import RewardActor
from asyncrl.reward.verifier import GroupMember, Verdict, VerifierInput
from asyncrl.reward.workers.messages import hung_message
from asyncrl.rollout.actor import RolloutOptions
from asyncrl.rollout.generations import Generations
from asyncrl.rollout.sleeping import Sleeper
from asyncrl.runtime.sessions import NodeSession, RunNode, ToldToStop
from asyncrl.trainer.actor import Start, TrainerActor
from asyncrl.trainer.packing.step import TrainingStep, TrajectoryInfo
from asyncrl.wire.handshake import Identity
from asyncrl.wire.run_address import RunAddress
from tests.simulation.checkpoints import CheckpointFolder, Trained
from tests.simulation.disk import Disk
from tests.simulation.engine import SimEngine
from tests.simulation.episodes import EpisodeActor, EpisodeGenerations
from tests.simulation.invariants import Invariants
from tests.simulation.plan import ADDRESS, Plan
from tests.simulation.transfers import Downloader, Publisher, Receiver, Transfers, Uploader
from tests.simulation.virtual_time import PROCESS

RUN = RunAddress(ADDRESS)
HUNG_S = 1.0
"""Time limit of a verdict."""
WAIT_S = 5.0
"""Seconds to wait for a broker."""
PLAN_HASH = "plan"


class World(Protocol):
    """The attributes of the world that nodes use."""

    plan: Plan
    dice: Random
    invariants: Invariants
    transfers: Transfers
    checkpoints: CheckpointFolder
    waiting: dict[str, Callable[[], tuple[str, list[PutItem]]]]
    on_devices: dict[str, tuple[str, Callable[[], bool]]]
    disk: Disk
    directory: Any
    calls: Iterator[int]

    def identity(self, role: Role, node: str) -> Identity:
        """Identity of a new incarnation of the node."""


def member(who: Identity) -> Member:
    return Member(who.node, who.incarnation)


# ── rollout ─────────────────────────────────────────────────────────────────────────────────


async def run_rollout(world: World, who: Identity, stopping: asyncio.Event) -> None:
    node = RunNode(who, RUN, wait_s=WAIT_S, stopping=stopping)
    generations: Generations | None = None
    try:
        with suppress(ToldToStop):
            async for session in node.sessions():
                async with session:
                    if generations is None:
                        await _turn(world, session)
                        await asyncio.sleep(world.dice.uniform(0.0, 0.5))
                        engine: Any = SimEngine(world.plan, world.dice, world.invariants.decodes_with, who.node)
                        make = EpisodeGenerations if world.plan.is_episodic else Generations
                        generations = make(engine, who.node, PROCESS.get().clock)
                        sleeper = Sleeper(engine, generations)
                        node.make_hello = partial(_say, generations)
                    await _roll_out(world, engine, generations, sleeper, session)
    finally:
        if generations:
            await generations.aclose()


def _say(generations: Generations, who: Identity) -> Hello:
    held = generations.begin_session()
    return Hello(PROTOCOL, who.role, who.node, who.incarnation, held, generations.policy_version)


async def _roll_out(
    world: World, engine: Any, generations: Generations, sleeper: Sleeper, session: NodeSession
) -> None:
    who, config = session.who, session.config
    world.on_devices[who.node] = who.incarnation, lambda: engine.is_awake
    if sleeper.is_asleep:
        await _turn(world, session)
        await sleeper.wake()
    options = RolloutOptions(
        slots=config.rollout.slots,
        group_size=config.schedule.group_size,
        partial_rollout=config.schedule.partial_rollout,
        progress_every_s=config.rollout.progress_every_s,
        layout_hash=PLAN_HASH,
        weights=(weights := world.plan.weights[int(who.node.partition("-")[2])]),
    )
    is_member = weights == "collective"
    receiver: Any = Receiver(world.transfers, member(who)) if is_member else Downloader(world.transfers)
    actor = EpisodeActor(
        engine,
        session.connection(),
        options,
        receiver=receiver,
        generations=generations,
        is_lost=lambda: world.dice.random() < world.plan.lost_environments,
        started_over=world.invariants.resumption.started_over,
        sleeper=sleeper if config.rollout.colocated else None,
        clock=PROCESS.get().clock,
    )
    if world.plan.is_episodic:
        engine.turn_ended = actor.turn_ended
    world.waiting[who.node] = lambda: (who.incarnation, list(generations.unsettled))
    try:
        await session.serve(actor, drain=actor.drain, drain_s=config.rollout.drain_s)
    except LinkError:
        if config.rollout.colocated:
            await sleeper.sleep()
        raise


async def _turn(world: World, session: NodeSession) -> None:
    """Wait for the first turn at shared devices, if they are shared."""
    if world.plan.config.rollout.colocated:
        await session.take_turn()


# ── reward ──────────────────────────────────────────────────────────────────────────────────


class SimPool:
    """Stand-in for `WorkerPool`."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def judge(self, inputs: VerifierInput) -> Verdict:
        await self._think()
        reward = reward_of(int(inputs.completion), self._world.plan.config.schedule.group_size)
        return Verdict(reward=reward, metrics={"correct": reward})

    async def judge_group(self, members: list[GroupMember]) -> list[Verdict]:
        """A zero-sum tournament, whose rewards name the call that gave them."""
        size = self._world.plan.config.schedule.group_size
        places = [divmod(int(member.completion), size) for member in members]
        assert places == sorted(set(places)), f"members are {places}: not each once, in their order"
        assert len({group_id for group_id, _ in places}) == 1, f"members are {places}, of several groups"
        await self._think()
        mean, call = sum(member.reward for member in members) / len(members), float(next(self._world.calls))
        return [Verdict(member.reward - mean, {**member.metrics, "call": call}) for member in members]

    async def _think(self) -> None:
        dice = self._world.dice
        pace = self._world.plan.pace
        await asyncio.sleep(dice.expovariate(1 / pace.verdict_s))
        if pace.hung and dice.random() < pace.hung:
            await asyncio.sleep(HUNG_S)
            raise VerifierError(hung_message(HUNG_S), retryable=True)
        if dice.random() < self._world.plan.failure:
            raise VerifierError("the verifier raised", retryable=dice.random() < 0.7)


def reward_of(first_token: int, group_size: int) -> float:
    """0 for the first trajectory of a group and 1 for the others; all are 1 in every third group."""
    group_id, index = divmod(first_token, group_size)
    return float(index > 0 or group_id % 3 == 0)


async def run_reward(world: World, who: Identity, stopping: asyncio.Event) -> None:
    with suppress(ToldToStop):
        async for session in RunNode(who, RUN, wait_s=WAIT_S, stopping=stopping).sessions():
            async with session:
                pool: Any = SimPool(world)
                connection, clock = session.connection(), PROCESS.get().clock
                max_open = 2 * session.config.schedule.group_size
                await session.serve(RewardActor(pool=pool, connection=connection, max_open=max_open, clock=clock))


# ── trainer ─────────────────────────────────────────────────────────────────────────────────


class SimLearner:
    """Stand-in for `Learner`: its weights are the list of steps they were trained on."""

    def __init__(self, world: World, trained: Trained) -> None:
        self._world = world
        self.trained = trained
        self.num_computed = 0
        self.is_awake = True

    def assign_ranks(self, infos: Sequence[TrajectoryInfo]) -> list[int]:
        return [0] * len(infos)

    def train(self, trained: TrainingStep, policy_version: int | None) -> dict[str, float]:
        assert self.is_awake, "the model sleeps"
        self.num_computed += 1
        trajectories = list(trained.trajectories.values())
        step = len(self.trained)
        if PROCESS.get().is_alive:
            self._world.invariants.trains(step, trajectories, self.trained)
        self.trained += ((step, tuple(dict.fromkeys(trajectory.group_id for trajectory in trajectories))),)
        num_tokens = sum(len(trajectory.completion_ids) for trajectory in trajectories)
        return {"num_tokens": float(num_tokens), "loss": 0.5}

    def named_weights(self) -> Any:
        assert self.is_awake, "the model sleeps"
        return self.trained

    def snapshot(self, _folder: object) -> Any:
        assert self.is_awake, "the model sleeps"
        return self.trained

    def sleep(self) -> int:
        self.is_awake = False
        return 1

    def wake(self) -> None:
        self.is_awake = True


async def run_trainer(world: World, who: Identity, stopping: asyncio.Event) -> None:
    with suppress(ToldToStop):
        async for session in RunNode(who, RUN, wait_s=WAIT_S, stopping=stopping).sessions():
            async with session:
                await _train(world, session)


async def _train(world: World, session: NodeSession) -> None:
    who = session.who
    await _turn(world, session)
    await asyncio.sleep(world.dice.uniform(0.0, 0.5))
    found = world.checkpoints.newest()
    learner: Any = SimLearner(world, found.trained if found else ())
    world.on_devices[who.node] = who.incarnation, lambda: learner.is_awake
    start = Start(found.step, found.policy_version, f"step_{found.step:06d}", found.stepped) if found else Start()
    publisher: Any = Publisher(world.transfers, member(who))
    nothing: Any = None
    folder: Any = world.checkpoints
    actor = TrainerActor(
        session.config,
        learner,
        publisher,
        session.connection(),
        tokenizer=nothing,
        layout_hash=PLAN_HASH,
        checkpoints=folder,
        start=start,
        shared=learner if world.plan.config.rollout.colocated else None,
        uploader=Uploader(world.transfers, publisher),
        clock=PROCESS.get().clock,
    )
    await session.serve(actor)
