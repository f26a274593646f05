"""
Embedding API: attaches an existing process, such as an inference server, to a run as a rollout.

    host = Host()
    task = asyncio.create_task(attach(engine, "tcp://127.0.0.1:5570", "server-1", slots=64, host=host))
    with host.user_request():                 # the rollout makes way
        ...
    host.health.state                         # such as "rolling_out"
    task.cancel()                             # leave the run
    await asyncio.wait([task])

The host provides an `asyncrl.rollout.engine.Engine`. `attach` opens sockets to the broker and the spools, and a thread
for weight transfers, and closes them when it ends. It installs no signal handlers and does not configure logging.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from asyncrl.actor.link import Link
from asyncrl.actor.zmq_link import ZmqLink
from asyncrl.client.connection import Connection
from asyncrl.client.handshake import Identity, hello, identity, spool_links, weights_links
from asyncrl.client.run_address import RunAddress, check_location, find_run
from asyncrl.config.sections import Weights, from_json
from asyncrl.errors import ConfigError, LinkError, LinkReset
from asyncrl.log import get_logger
from asyncrl.messages import PROTOCOL, Hello, Member, WeightsVia, Welcome
from asyncrl.node.episodes import most_episodes, open_episodes
from asyncrl.node.host import Host
from asyncrl.node.machine.local_address import local_address
from asyncrl.node.runner import ToldToStop, await_with_beats, join_steadily, run_sessions, serve
from asyncrl.node.turn import first_turn
from asyncrl.rollout.actor import RolloutActor, RolloutOptions
from asyncrl.rollout.engine import Engine, MultiProcessEngine, WeightReceiver
from asyncrl.rollout.generations import Generations
from asyncrl.rollout.sleeping import Sleeper
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.groups.device import staging_device
from asyncrl.weights.groups.group import CPU
from asyncrl.weights.receive import Receiver

if TYPE_CHECKING:
    from asyncrl.weights.stored.staged import StagedVersion

log = get_logger()


async def attach(
    engine: Engine,
    address: str,
    name: str,
    *,
    slots: int,
    key: Path | None = None,
    wait_s: float | None = None,
    host: Host | None = None,
    weights: WeightsVia = "collective",
) -> None:
    """
    Generate trajectories with ``engine`` until the run is over or the broker drains this node.

    The broker leases prompts to the node and sends it every new policy version. If the broker restarts or is away, the
    node waits for it, with warnings in the log, then joins it again with its unfinished trajectories. Cancel the
    coroutine to leave at once: other nodes then generate the unfinished trajectories again.

    Args:
        engine: Remains open and owned by the caller. It must have the architecture of the trainer's model; its weights
            are replaced by the first transfer.
        address: Address of the broker, such as ``tcp://127.0.0.1:5570``, or a run directory of this machine.
        name: Name of this node, unique in the run.
        slots: Maximum number of completions that the engine decodes concurrently.
        key: File with the key of this node, or with the secret of the run. Not needed on the broker's machine by
            processes of its user.
        wait_s: Seconds to wait for the broker to answer, at the start and whenever it was lost; None waits as long as
            the coroutine runs.
        host: Users' requests that the rollout makes way for, and the place of its health. None samples all the time.
        weights: Way by which weights reach the node: ``collective``, or ``spool`` for a node that the trainer cannot
            reach, such as one in another data centre.

    Raises:
        ConfigError: ``address`` is not an address, there are no credentials for it, or the run's devices are shared.
        LinkError: The broker does not answer within ``wait_s``.
        LinkRefused: The broker rejects the node, for example because its model differs from the trainer's.
        EngineError, EngineDied: The engine failed.
    """
    host = host or Host()
    try:
        host.enter("waiting_for_broker")
        check_location(address, "address")
        run = await find_run(address, key, wait_s)
        who, link, welcome = await join_steadily(run, identity("rollout", name), wait_s)
        run_id = welcome.run_id
        if from_json(welcome.config).rollout.colocated:
            raise ConfigError(
                f"the run at {address} has rollout.colocated: its rollouts sleep in the trainer's turns, and an engine "
                f"that serves users cannot; use a run without it"
            )
        while await _roll_out_until_busy(
            engine, run, who, link, welcome, wait_s=wait_s, slots=slots, weights=weights, host=host
        ):
            await host.users.until_idle()
            host.enter("waiting_for_broker")
            who, link, welcome = await join_steadily(
                run,
                identity("rollout", name),
                wait_s,
                lambda who: replace(hello(who), run_id=run_id),
                is_member=True,
            )
    except Exception as error:  # the host may never await the task, and must hear of its end nevertheless
        host.failed(error)
        log.error("rollout.ended", node=name, address=address, cause=f"{type(error).__name__}: {error}")
        raise
    finally:
        host.enter("ended")


async def _roll_out_until_busy(
    engine: Engine,
    run: RunAddress,
    who: Identity,
    link: ZmqLink,
    welcome: Welcome,
    *,
    wait_s: float | None,
    slots: int,
    weights: WeightsVia,
    host: Host,
) -> bool:
    """`roll_out`, but leave the run when users keep the host busy for long. True if they did."""
    stopping = asyncio.Event()
    is_handed_back = False

    async def hand_back() -> None:
        nonlocal is_handed_back
        await host.users.until_busy_for(host.hand_back_s)
        is_handed_back = True
        log.info("rollout.handed_back", node=who.node, busy_s=host.hand_back_s)
        host.enter("paused_for_users")
        stopping.set()

    handing_back = asyncio.create_task(hand_back(), name="asyncrl-hand-back")
    try:
        await roll_out(
            engine,
            run,
            who,
            link,
            welcome,
            wait_s=wait_s,
            slots=slots,
            weights=weights,
            stopping=stopping,
            rejoin_on=LinkError,
            host=host,
        )
    except ToldToStop:  # The broker was lost meanwhile; it leases the trajectories again.
        pass
    finally:
        handing_back.cancel()
    return is_handed_back


async def roll_out(
    engine: Engine,
    run: RunAddress,
    who: Identity,
    link: Link,
    welcome: Welcome,
    *,
    wait_s: float | None,
    slots: int,
    weights: WeightsVia,
    stopping: asyncio.Event,
    rejoin_on: type[LinkError] = LinkReset,
    host: Host | None = None,
) -> None:
    """
    `attach` after joining; see `run_sessions` for ``rejoin_on``. When ``stopping`` is set, drain and leave.

    Sampling continues while the broker is away; the next session starts with the unfinished trajectories.
    """
    host = host or Host()
    config = from_json(welcome.config)
    opening = open_episodes(config, engine, run_id=welcome.run_id, node=who.node, slots=slots)
    async with AsyncExitStack() as stack:
        episodes = await await_with_beats(link, welcome.beat_s, stack.enter_async_context(opening))
        generations = Generations(
            engine,
            who.node,
            users=host.users,
            on_failure=host.failed,
            episodes=episodes,
            hold="turn" if config.schedule.partial_rollout == "turn" else "trajectory",
        )
        stack.push_async_callback(generations.aclose)
        await _roll_out(
            engine,
            run,
            who,
            link,
            welcome,
            wait_s=wait_s,
            slots=slots,
            weights=weights,
            stopping=stopping,
            rejoin_on=rejoin_on,
            host=host,
            generations=generations,
        )


async def _roll_out(
    engine: Engine,
    run: RunAddress,
    who: Identity,
    link: Link,
    welcome: Welcome,
    *,
    wait_s: float | None,
    slots: int,
    weights: WeightsVia,
    stopping: asyncio.Event,
    rejoin_on: type[LinkError],
    host: Host,
    generations: Generations,
) -> None:
    """`roll_out` with ``generations``, which outlive the sessions."""
    generations.watch_users()
    host.rolls_out(generations)
    sleeper = Sleeper(engine, generations)
    staged: StagedVersion | None = None
    """Outlives the sessions: what was fetched is not fetched again."""

    def make_hello(who: Identity) -> Hello:
        held = generations.begin_session()
        return Hello(PROTOCOL, who.role, who.node, who.incarnation, held, generations.policy_version)

    async def session(who: Identity, link: Link, welcome: Welcome) -> None:
        nonlocal staged
        host.enter("rolling_out" if generations.policy_version >= 0 else "joining")
        config = from_json(welcome.config)
        link = await _awake(sleeper, link, welcome, stopping)
        layout = Layout(engine.specs(), config.weights.bucket_bytes)
        member = Member(who.node, who.incarnation, receiving_ranks(engine, config.weights))
        receiver: WeightReceiver
        if weights == "spool":
            # Here, because a rollout that takes part in the collective need not have zstandard.
            from asyncrl.weights.stored.download import Downloader  # noqa: PLC0415
            from asyncrl.weights.stored.staged import StagedVersion  # noqa: PLC0415

            if staged is not None and staged.layout.hash != layout.hash:
                staged.close()
                staged = None
            if staged is None:
                staged = StagedVersion(layout, is_shared=isinstance(engine, MultiProcessEngine))
            receiver = Downloader(staged, weights_links(welcome.spools, who, run))
        else:
            interface = await _interface(run, config.weights)
            receiver = await _receiver(engine, layout, member, link, config.weights, interface=interface)
        options = RolloutOptions(
            slots=slots,
            group_size=config.schedule.group_size + config.greedy_per_group,
            episodes=most_episodes(config, slots),
            partial_rollout=config.schedule.partial_rollout,
            progress_every_s=config.rollout.progress_every_s,
            layout_hash=layout.hash,
            ranks=member.ranks,
            weights=weights,
            is_in_place=config.weights.staging == "bucket" and weights == "collective",
        )
        actor = RolloutActor(
            engine,
            Connection(who, link, spool_links(welcome.spools, who, run)),
            options,
            receiver=receiver,
            generations=generations,
            sleeper=sleeper if config.rollout.colocated else None,
            on_drain=stopping.set,
            on_live=lambda: host.enter("rolling_out"),
        )
        try:
            async with aclosing(receiver):
                await serve(
                    actor,
                    link,
                    beat_s=welcome.beat_s,
                    stopping=stopping,
                    drain=actor.drain,
                    drain_s=config.rollout.drain_s,
                )
        except LinkError as lost:
            host.failed(lost)
            host.enter("waiting_for_broker")
            if config.rollout.colocated:
                await sleeper.sleep()  # A trainer may load before this node is heard again.
            raise

    try:
        await run_sessions(
            session,
            who,
            link,
            welcome,
            run=run,
            wait_s=wait_s,
            stopping=stopping,
            make_hello=make_hello,
            rejoin_on=rejoin_on,
        )
    finally:
        if staged is not None:
            staged.close()
        host.rolls_out(None)


async def _awake(sleeper: Sleeper, link: Link, welcome: Welcome, stopping: asyncio.Event) -> Link:
    """Wake the engine in the first turn of the session, if it sleeps. Returns the link for the session."""
    if sleeper.is_asleep:
        link = await first_turn(link, welcome.beat_s, stopping)
        await sleeper.wake()
    return link


def receiving_ranks(engine: Engine, weights: Weights) -> int:
    """Processes that take part in a collective transfer."""
    return engine.ranks if isinstance(engine, MultiProcessEngine) and weights.staging == "bucket" else 1


async def _interface(run: RunAddress, weights: Weights) -> str:
    """`local_address` in a thread that ends with it; the event loop's pool would keep one for the host's lifetime."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="asyncrl-address")
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, local_address, run.broker, weights.interface)
    finally:
        pool.shutdown(wait=False)


async def _receiver(
    engine: Engine, layout: Layout, member: Member, link: Link, weights: Weights, *, interface: str
) -> WeightReceiver:
    if isinstance(engine, MultiProcessEngine):
        return await engine.receiver(member, link.send, weights, interface=interface)
    own = getattr(engine, "device", CPU)
    device = staging_device(weights.backend, own)
    return Receiver(layout, member, link.send, weights, interface=interface, device=device, beside=own)
