"""
A rollout in a process that exists already: an engine, a broker's address, and one coroutine to await.

`asyncrl-node --role rollout` is this with an engine of its own around it, and signals around that.
"""

import asyncio
from functools import partial

from asyncrl.actor.zmq_link import ZmqLink
from asyncrl.client.handshake import Identity, identity, join, spool_link
from asyncrl.config.sections import from_json
from asyncrl.messages import PROTOCOL, Hello, Member, Welcome
from asyncrl.node.runner import serve, through_restarts
from asyncrl.rollout.actor import RolloutActor
from asyncrl.rollout.engine import Engine, MultiProcessEngine, WeightReceiver
from asyncrl.rollout.generations import Generations
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.groups.device import staging_device
from asyncrl.weights.receive import Receiver


async def attach(engine: Engine, address: str, name: str, *, slots: int, wait_s: float = 30.0) -> None:
    """
    Roll out with ``engine`` until the run is over or this node is drained. Cancel it to leave at once: what is in hand
    is then sampled anew by other nodes.

    Args:
        engine: Borrowed; it stays open.
        address: The broker's.
        name: Of this node, unique in the run.
        slots: Completions the engine decodes together.
        wait_s: For the broker to answer, now and when it starts again.

    Raises:
        LinkError: The broker does not answer, or refuses.
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
    The same on a link that was welcomed already. When ``stopping`` is set, hand over what is in hand and leave.

    While the broker is away, sampling goes on: the next session begins with what is in hand then.

    Raises:
        LinkError: The broker refuses this engine's model, or is gone.
    """
    in_hand = Generations(engine, who.node)

    def say(who: Identity) -> Hello:
        return Hello(PROTOCOL, who.role, who.node, who.incarnation, in_hand.held(), in_hand.policy_version)

    session = partial(_session, engine, in_hand, slots=slots, stopping=stopping)
    try:
        await through_restarts(session, who, link, welcome, wait_s, say=say)
    finally:
        await in_hand.aclose()


async def _session(
    engine: Engine,
    in_hand: Generations,
    who: Identity,
    link: ZmqLink,
    welcome: Welcome,
    *,
    slots: int,
    stopping: asyncio.Event,
) -> None:
    """One life of the link."""
    config = from_json(welcome.config)
    plan = Layout(engine.specs(), config.weights.bucket_bytes)
    ranks = engine.ranks if isinstance(engine, MultiProcessEngine) else 1
    member = Member(who.node, who.incarnation, ranks)
    receiver: WeightReceiver
    if isinstance(engine, MultiProcessEngine):
        receiver = await engine.receiver(member, link.send, config.weights)
    else:
        device = staging_device(config.weights.backend)
        receiver = Receiver(plan, member, link.send, config.weights, device=device)
    spool = spool_link(welcome, who)
    actor = RolloutActor(
        engine,
        link,
        spool,
        node=who.node,
        incarnation=who.incarnation,
        slots=slots,
        group_size=config.schedule.group_size + config.greedy_per_group,
        receiver=receiver,
        layout_hash=plan.hash,
        ranks=ranks,
        partial_rollout=config.schedule.partial_rollout,
        is_in_place=config.weights.staging == "bucket",
        progress_every_s=config.rollout.progress_every_s,
        in_hand=in_hand,
        on_drain=stopping.set,
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
