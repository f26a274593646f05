"""
Embedding API: attaches an existing process, such as an inference server, to a run as a rollout.

    task = asyncio.create_task(attach(engine, "tcp://127.0.0.1:5570", "server-1", slots=64))
    ...                                       # the host serves its own requests meanwhile
    task.cancel()                             # leave the run
    await asyncio.wait([task])

The host provides an `asyncrl.rollout.engine.Engine`. `attach` opens sockets to the broker and its spool, and a thread
for weight transfers, and closes them when it ends. It installs no signal handlers and does not configure logging.
"""

import asyncio
from functools import partial

from asyncrl.actor.link import Link
from asyncrl.actor.zmq_link import ZmqLink
from asyncrl.client.connection import Connection
from asyncrl.client.handshake import Identity, identity, join, spool_link
from asyncrl.config.sections import Weights, from_json
from asyncrl.messages import PROTOCOL, Hello, Member, Welcome
from asyncrl.node.runner import run_sessions, serve
from asyncrl.rollout.actor import RolloutActor, RolloutOptions
from asyncrl.rollout.engine import Engine, MultiProcessEngine, WeightReceiver
from asyncrl.rollout.generations import Generations
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.groups.device import staging_device
from asyncrl.weights.receive import Receiver


async def attach(engine: Engine, address: str, name: str, *, slots: int, wait_s: float = 30.0) -> None:
    """
    Generate trajectories with ``engine`` until the run is over or the broker drains this node.

    The broker leases prompts to the node and sends it every new policy version. If the broker restarts, the node
    joins it again and keeps its unfinished trajectories. Cancel the coroutine to leave at once: other nodes then
    generate the unfinished trajectories again.

    Args:
        engine: Remains open and owned by the caller. It must have the architecture of the trainer's model; its weights
            are replaced by the first transfer.
        address: Control address of the broker, such as ``tcp://127.0.0.1:5570``.
        name: Name of this node, unique in the run.
        slots: Maximum number of completions that the engine decodes concurrently.
        wait_s: Seconds to wait for the broker to answer, at the start and after each restart of the broker.

    Raises:
        LinkError: The broker does not answer within ``wait_s``.
        LinkRefused: The broker rejects the node, for example because its model differs from the trainer's.
        EngineError, EngineDied: The engine failed.
    """
    who = identity("rollout", name)
    link, welcome = await join(address, who, wait_s)
    await roll_out(engine, who, link, welcome, wait_s=wait_s, slots=slots, stopping=asyncio.Event())


async def roll_out(
    engine: Engine,
    who: Identity,
    link: ZmqLink,
    welcome: Welcome,
    *,
    wait_s: float,
    slots: int,
    stopping: asyncio.Event,
) -> None:
    """
    `attach` for a link that has joined. When ``stopping`` is set, drain and leave.

    Sampling continues while the broker is away; the next session starts with the unfinished trajectories.
    """
    generations = Generations(engine, who.node)

    def make_hello(who: Identity) -> Hello:
        held = generations.begin_session()
        return Hello(PROTOCOL, who.role, who.node, who.incarnation, held, generations.policy_version)

    async def session(who: Identity, link: ZmqLink, welcome: Welcome) -> None:
        config = from_json(welcome.config)
        layout = Layout(engine.specs(), config.weights.bucket_bytes)
        member = Member(who.node, who.incarnation, engine.ranks if isinstance(engine, MultiProcessEngine) else 1)
        receiver = await _receiver(engine, layout, member, link, config.weights)
        spool = spool_link(welcome, who)
        options = RolloutOptions(
            slots=slots,
            group_size=config.schedule.group_size + config.greedy_per_group,
            partial_rollout=config.schedule.partial_rollout,
            progress_every_s=config.rollout.progress_every_s,
            layout_hash=layout.hash,
            ranks=member.ranks,
            is_in_place=config.weights.staging == "bucket",
        )
        actor = RolloutActor(
            engine,
            Connection(who, link, spool),
            options,
            receiver=receiver,
            generations=generations,
            on_drain=stopping.set,
        )
        try:
            drain = partial(actor.drain, config.rollout.drain_s)
            await serve(actor, link, beat_s=welcome.beat_s, stopping=stopping, drain=drain)
        finally:
            await receiver.aclose()
            await spool.aclose()

    try:
        await run_sessions(session, who, link, welcome, wait_s, make_hello=make_hello)
    finally:
        await generations.aclose()


async def _receiver(engine: Engine, layout: Layout, member: Member, link: Link, weights: Weights) -> WeightReceiver:
    if isinstance(engine, MultiProcessEngine):
        return await engine.receiver(member, link.send, weights)
    return Receiver(layout, member, link.send, weights, device=staging_device(weights.backend))
