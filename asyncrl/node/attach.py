"""
A rollout in a process that exists already: an engine, a broker's address, and one coroutine to await.

`asyncrl-node --role rollout` is this with an engine of its own around it, and signals around that.
"""

import asyncio

from asyncrl.actor.greeting import Identity, identity, join, spool_link
from asyncrl.actor.zmq_link import ZmqLink
from asyncrl.config import from_json
from asyncrl.messages import Member, Welcome
from asyncrl.node.serving import serve
from asyncrl.rollout.actor import RolloutActor
from asyncrl.rollout.engine import Engine
from asyncrl.weights.plan import Plan
from asyncrl.weights.receive import Receiver


async def attach(engine: Engine, address: str, name: str, *, slots: int, wait_s: float = 30.0) -> None:
    """
    Roll out with ``engine`` until the run is over. Cancel it to leave: what is in hand goes to other nodes.

    Args:
        engine: Borrowed; it stays open.
        address: The broker's.
        name: Of this node, unique in the run.
        slots: Completions the engine decodes together.
        wait_s: For the broker to answer.

    Raises:
        LinkError: The broker does not answer, refuses, or has restarted.
    """
    who = identity("rollout", name)
    link, welcome = await join(address, who, wait_s)
    await roll_out(engine, who, link, welcome, slots=slots, stopping=asyncio.Event())


async def roll_out(
    engine: Engine, who: Identity, link: ZmqLink, welcome: Welcome, *, slots: int, stopping: asyncio.Event
) -> None:
    """
    The same on a link that was welcomed already. When ``stopping`` is set, finish what is in hand and leave.

    Raises:
        LinkError: The broker refuses this engine's model, or has restarted.
    """
    config = from_json(welcome.config)
    plan = Plan(engine.specs(), config.weights.bucket_bytes)
    receiver = Receiver(plan, Member(who.node, who.incarnation), link.send, config.weights)
    spool = spool_link(welcome, who)
    actor = RolloutActor(
        engine,
        link,
        spool,
        node=who.node,
        incarnation=who.incarnation,
        slots=slots,
        group_size=config.schedule.group_size,
        receiver=receiver,
        plan_hash=plan.hash,
        partial_rollout=config.schedule.partial_rollout,
    )
    try:
        await serve(
            actor,
            link,
            beat_s=welcome.beat_s,
            stopping=stopping,
            drain=lambda: actor.drain(config.rollout.drain_s),
        )
    finally:
        await receiver.aclose()
        await spool.aclose()
