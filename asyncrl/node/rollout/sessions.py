"""
The sessions of a rollout with the broker: an actor for each, around one engine and one set of trajectories.

    roll_out ─▶ environments, `Generations` ─▶ session ─▶ broker lost ─▶ session ─▶ ...
                                                └ wake, receiver, `RolloutActor`
"""

import asyncio
from contextlib import AsyncExitStack, aclosing

from asyncrl.actor.link import Link
from asyncrl.client.connection import Connection
from asyncrl.client.handshake import Identity, spool_links
from asyncrl.client.run_address import RunAddress
from asyncrl.config.config import from_json
from asyncrl.errors import LinkError, LinkReset
from asyncrl.messages.session import Hello, Welcome
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import WeightsVia
from asyncrl.node.embedding.host import Host
from asyncrl.node.rollout.episodes import most_episodes, open_episodes
from asyncrl.node.rollout.receivers import Receivers, receiving_ranks
from asyncrl.node.runner import await_with_beats, run_sessions, serve
from asyncrl.node.turn import first_turn
from asyncrl.rollout.actor import RolloutActor, RolloutOptions
from asyncrl.rollout.engine import Engine
from asyncrl.rollout.generations import Generations
from asyncrl.rollout.sleeping import Sleeper
from asyncrl.weights.contents.layout import Layout


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
    Generate trajectories from `Welcome` on; see `run_sessions` for ``rejoin_on``. ``stopping``: drain and leave.

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
        receivers = Receivers(engine, run, weights)
        stack.callback(receivers.close)
        generations.watch_users()
        host.rolls_out(generations)
        stack.callback(host.rolls_out, None)
        sessions = RolloutSessions(engine, generations, receivers, run, slots=slots, stopping=stopping, host=host)
        await run_sessions(
            sessions.session,
            who,
            link,
            welcome,
            run=run,
            wait_s=wait_s,
            stopping=stopping,
            make_hello=sessions.hello,
            rejoin_on=rejoin_on,
        )


class RolloutSessions:
    """One session after another. All arguments outlive them, and are borrowed."""

    def __init__(
        self,
        engine: Engine,
        generations: Generations,
        receivers: Receivers,
        run: RunAddress,
        *,
        slots: int,
        stopping: asyncio.Event,
        host: Host,
    ) -> None:
        self._engine = engine
        self._generations = generations
        self._receivers = receivers
        self._run = run
        self._slots = slots
        self._stopping = stopping
        self._host = host
        self._sleeper = Sleeper(engine, generations)

    def hello(self, who: Identity) -> Hello:
        """The trajectories that a new session begins with."""
        held = self._generations.begin_session()
        return Hello(PROTOCOL, who.role, who.node, who.incarnation, held, self._generations.policy_version)

    async def session(self, who: Identity, link: Link, welcome: Welcome) -> None:
        """Roll out until the broker is lost, the run is over, or this node has drained. Raises `LinkError`."""
        host, config, via = self._host, from_json(welcome.config), self._receivers.via
        host.enter("rolling_out" if self._generations.policy_version >= 0 else "joining")
        link = await self._awake(link, welcome)
        layout = Layout(self._engine.specs(), config.weights.bucket_bytes)
        receiver = await self._receivers.open(layout, config.weights, who=who, link=link, welcome=welcome)
        options = RolloutOptions(
            slots=self._slots,
            group_size=config.schedule.group_size + config.greedy_per_group,
            episodes=most_episodes(config, self._slots),
            partial_rollout=config.schedule.partial_rollout,
            progress_every_s=config.rollout.progress_every_s,
            layout_hash=layout.hash,
            ranks=receiving_ranks(self._engine, config.weights),
            weights=via,
            is_in_place=config.weights.staging == "bucket" and via == "collective",
        )
        actor = RolloutActor(
            self._engine,
            Connection(who, link, spool_links(welcome.spools, who, self._run)),
            options,
            receiver=receiver,
            generations=self._generations,
            sleeper=self._sleeper if config.rollout.colocated else None,
            on_drain=self._stopping.set,
            on_live=lambda: host.enter("rolling_out"),
        )
        try:
            async with aclosing(receiver):
                await serve(
                    actor,
                    link,
                    beat_s=welcome.beat_s,
                    stopping=self._stopping,
                    drain=actor.drain,
                    drain_s=config.rollout.drain_s,
                    limits=config.broker,
                )
        except LinkError as lost:
            host.failed(lost)
            host.enter("waiting_for_broker")
            if config.rollout.colocated:
                await self._sleeper.sleep()  # A trainer may load before this node is heard again.
            raise

    async def _awake(self, link: Link, welcome: Welcome) -> Link:
        """Wake the engine in the first turn of the session, if it sleeps. Returns the link for the session."""
        if self._sleeper.is_asleep:
            link = await first_turn(link, welcome.beat_s, self._stopping)
            await self._sleeper.wake()
        return link
