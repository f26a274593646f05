"""
A rollout's process: engine, environments and receivers of weights, in sessions with the broker; or a host's engine,
attached to it.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
)
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.config.config import Config
from asyncrl.config.engines import imported
from asyncrl.config.sections.weights import Weights
from asyncrl.engine import Engine, MultiProcessEngine, WeightReceiver
from asyncrl.episodes.episodes import Episodes, paced
from asyncrl.episodes.gateway.app import serve as serve_gateway
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.episodes.pool import make_environments
from asyncrl.errors import ConfigError, LinkError
from asyncrl.messages.session import Hello, Welcome
from asyncrl.messages.weights import Member
from asyncrl.messages.words import WeightsVia
from asyncrl.plug_in import blamed, is_path, load_callable
from asyncrl.rollout.actor import RolloutActor, RolloutOptions
from asyncrl.rollout.generations import Generations
from asyncrl.rollout.sleeping import Sleeper
from asyncrl.rollout.user_requests import UserRequests, require_boundary
from asyncrl.runtime.local_address import local_address
from asyncrl.runtime.machine import find, require_devices
from asyncrl.runtime.model_files import local_copies, require_same_models
from asyncrl.runtime.process import StopEvent
from asyncrl.runtime.sessions import NodeSession, RunNode, await_with_beats
from asyncrl.served.app import OpenModels, open_models
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.groups.device import staging_device
from asyncrl.weights.groups.group import CPU
from asyncrl.weights.publish import Receiver
from asyncrl.wire.addresses import host_of, tcp
from asyncrl.wire.handshake import Identity, hello, weights_links
from asyncrl.wire.link import Link
from asyncrl.wire.run_address import RunAddress
from asyncrl.workers.forked import uncollected

# ── engine ────────────────────────────────────────────────────────────────────────────────────
# Loads the configured rollout engine on the devices of this process.

METHODS = tuple(name for name in vars(Engine) if not name.startswith("_"))
"""Methods of an `Engine`."""


def load_engine(config: Config) -> Engine:
    """
    Load ``config.model`` into the engine. Takes seconds; may be called on any thread, once per process.

    Raises:
        ConfigError: The engine is not installed, needs more devices than this process may use, or cannot run the model.
        EngineDied: The engine did not start.
    """
    rollout = config.rollout
    devices = find(rollout.wanted_device, os.environ)
    require_devices(devices, rollout)
    os.environ.update(devices.environment())  # must precede the import of libraries that read these variables
    found = replace(config, rollout=replace(rollout, device=devices.kind))
    if is_path(rollout.engine):
        return _own_engine(rollout.engine, found)
    with uncollected():
        load = imported(rollout.entry.load)
    engine: Engine = load(found)
    return engine


def _own_engine(path: str, config: Config) -> Engine:
    """The engine that a host's function returns."""
    setting = "rollout.engine"
    load = load_callable(path, setting=setting)
    with blamed(path, setting=setting, ours=__file__):
        engine: Engine = load(config)
    if missing := [name for name in METHODS if not callable(getattr(engine, name, None))]:
        raise ConfigError(
            f"{setting} {path!r} returned a {type(engine).__name__}, which lacks {', '.join(missing)} of "
            f"asyncrl.engine.Engine"
        )
    return engine


# ── episodes ──────────────────────────────────────────────────────────────────────────────────
# The environments of a rollout's process, and the episodes that are played with them.

PROGRAMS_PER_CORE = 4
"""Agent programs that share a core, each a process of its own that mostly waits for the policy."""


@asynccontextmanager
async def open_episodes(
    config: Config,
    engine: Engine,
    *,
    run_id: str,
    node: str,
    slots: int,
    variables: Mapping[str, str] | None = None,
) -> AsyncIterator[Episodes | None]:
    """
    Start the workers of ``[environment]``, and end them with all that they have started; None without one.

    Args:
        variables: Added to the environment of their processes.

    Raises:
        ConfigError: The environment cannot be loaded, or the engine cannot hold a conversation.
    """
    if not config.environment.is_set:
        yield None
        return
    conversing, environment = require_boundary(engine), config.environment
    async with AsyncExitStack() as stack:
        environments = await stack.enter_async_context(make_environments(environment, run_id, node, variables))
        gateway: Gateway | None = None
        if environments.description.kind != "steps":
            gateway = Gateway(
                allowed=environment.gateway_ignores,
                refused=environment.gateway_refuses,
                as_template=environment.history == "as_template",
            )
            await stack.enter_async_context(serve_gateway(gateway, environment.gateway))
        most = most_episodes(config, slots)
        episodes = Episodes(environment, environments, conversing, run=run_id, most=most, gateway=gateway)
        await stack.enter_async_context(paced(episodes, engine, slots))
        yield episodes


def models_of_rollout(config: Config, folder: Path | None = None) -> AbstractAsyncContextManager[OpenModels]:
    """`open_models` for the code of a rollout, at the host at which its programs reach the gateway."""
    host = host_of(config.environment.gateway)
    return open_models(config.rollout_models, address=tcp(host, 0), folder=folder)


def most_episodes(config: Config, slots: int) -> int:
    """Episodes in hand at a time; 0 without an ``[environment]``."""
    if not config.environment.is_set:
        return 0
    if config.rollout.episodes:
        return config.rollout.episodes
    return min(2 * slots, PROGRAMS_PER_CORE * (os.cpu_count() or 1)) if config.environment.command else 2 * slots


# ── receivers ─────────────────────────────────────────────────────────────────────────────────
# The receiver of new weights in each session of a rollout, by the way that weights reach its machine.
#
#     collective ─▶ member of the trainer's group: staging memory of this process, or the engine's own processes
#     spool      ─▶ downloads from spools, into memory that outlives the session: nothing is fetched twice

if TYPE_CHECKING:
    from asyncrl.weights.stored.staged import StagedVersion


class Receivers:
    """Makes one receiver for each session. ``close`` frees what outlives them."""

    def __init__(self, engine: Engine, run: RunAddress, via: WeightsVia) -> None:
        self.via = via
        self._engine = engine
        self._run = run
        self._staged: StagedVersion | None = None

    async def open(
        self, layout: Layout, weights: Weights, *, who: Identity, link: Link, welcome: Welcome
    ) -> WeightReceiver:
        """A receiver, which the session closes."""
        if self.via == "spool":
            return self._downloader(layout, welcome, who)
        engine, member = self._engine, Member(who.node, who.incarnation, receiving_ranks(self._engine, weights))
        interface = await _interface(self._run, weights)
        if isinstance(engine, MultiProcessEngine):
            return await engine.receiver(member, link.send, weights, interface=interface)
        own = getattr(engine, "device", CPU)
        device = staging_device(weights.backend, own)
        return Receiver(layout, member, link.send, weights, interface=interface, device=device, beside=own)

    def close(self) -> None:
        if self._staged is not None:
            self._staged.close()
            self._staged = None

    def _downloader(self, layout: Layout, welcome: Welcome, who: Identity) -> WeightReceiver:
        # Here, because a rollout that takes part in the collective need not have zstandard.
        from asyncrl.weights.stored.download import Downloader  # noqa: PLC0415
        from asyncrl.weights.stored.staged import StagedVersion  # noqa: PLC0415

        if self._staged is not None and self._staged.layout.hash != layout.hash:
            self.close()
        if self._staged is None:
            self._staged = StagedVersion(layout, is_shared=isinstance(self._engine, MultiProcessEngine))
        return Downloader(self._staged, weights_links(welcome.spools, who, self._run))


def receiving_ranks(engine: Engine, weights: Weights) -> int:
    """Number of this node's processes that take part in a collective transfer."""
    return engine.ranks if isinstance(engine, MultiProcessEngine) and weights.staging == "bucket" else 1


async def _interface(run: RunAddress, weights: Weights) -> str:
    """`local_address` in a thread that ends with it; the event loop's pool would keep one for the host's lifetime."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="asyncrl-address")
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, local_address, run.broker, weights.interface)
    finally:
        pool.shutdown(wait=False)


# ── host ──────────────────────────────────────────────────────────────────────────────────────
# A serving process and the rollout attached to it: users' requests go in, the rollout's health comes out.
#
#     waiting_for_broker ─▶ joining ─▶ rolling_out ◀─▶ paused_for_users          ended
#             ▲                └───────────┴── the broker is lost                  ▲
#             └─────────────────────────────────┘           from each: cancelled, failed, or the run is over

State = Literal["waiting_for_broker", "joining", "rolling_out", "paused_for_users", "ended"]


class RolloutHealth(Struct, frozen=True, kw_only=True):
    """State of a rollout at one moment."""

    state: State
    """``waiting_for_broker`` also before `attach` is called; ``joining`` until the first weights have come."""
    since: float
    """Time of day at which the state began, `time.time`."""
    policy_version: int = -1
    """Version the engine decodes with; -1 before the first weights."""
    in_hand: int = 0
    """Trajectories that are being sampled, wait for users' requests to end, or wait to be stored."""
    num_tokens: int = 0
    """Tokens of finished completions since `attach` was called."""
    last_error: str = ""
    """Latest error, from which the rollout may have recovered; empty if there was none."""


class Host:
    """
    The serving process of one `attach`. All methods may be called from any thread.

    Args:
        grace_s: Seconds without a user's request after which the rollout continues.
        hand_back_s: Seconds of users' requests without such a break after which the rollout leaves the run, and other
            rollouts continue its trajectories. It joins again in the next break.
    """

    def __init__(
        self, *, grace_s: float = 0.05, hand_back_s: float = 30.0, clock: Callable[[], float] = time.time
    ) -> None:
        self.hand_back_s = hand_back_s
        self.users = UserRequests(grace_s, clock)
        self._clock = clock
        self._state: tuple[State, float] = ("waiting_for_broker", clock())
        self._last_error = ""
        self._generations: Generations | None = None
        self._earlier_tokens = 0

    def user_request(self) -> AbstractContextManager[None]:
        """Mark a user's request as in hand for the time of a ``with`` block: the rollout makes way. Never raises."""
        return self.users.request()

    @property
    def health(self) -> RolloutHealth:
        """The rollout's health now; costs microseconds."""
        generations, (state, since) = self._generations, self._state
        if state == "rolling_out" and not self.users.is_idle:
            state, since = "paused_for_users", max(since, self.users.since)
        elif state == "rolling_out":
            since = max(since, self.users.since)
        return RolloutHealth(
            state=state,
            since=since,
            policy_version=generations.policy_version if generations else -1,
            in_hand=generations.num_in_hand if generations else 0,
            num_tokens=self._earlier_tokens + (generations.calls.num_tokens if generations else 0),
            last_error=self._last_error,
        )

    # ── called by attach ────────────────────────────────────────────────────────────────────

    def enter(self, state: State) -> None:
        if state != self._state[0]:
            self._state = state, self._clock()

    def failed(self, error: BaseException) -> None:
        self._last_error = f"{type(error).__name__}: {error}"

    def rolls_out(self, generations: Generations | None) -> None:
        """Show what is in hand of ``generations``; None after their end."""
        if self._generations:
            self._earlier_tokens += self._generations.calls.num_tokens
        self._generations = generations


# ── rollout ───────────────────────────────────────────────────────────────────────────────────
# A rollout's sessions with the broker: an actor for each, around one engine and one set of trajectories.
#
#     engine ─▶ Rollout: environments, `Generations` ─▶ session ─▶ broker lost ─▶ session ─▶ ...
#                                                        └ wake, receiver, `RolloutActor`


class RolloutNode:
    """
    Everything of a rollout that outlives its sessions with the broker. ``engine`` stays open; all else closes with the
    context.

    Sampling continues while the broker is away; the next session starts with the unfinished trajectories.

    Args:
        session: The first one; while environments start, it is kept alive.
        slots: Maximum number of completions that the engine decodes concurrently.
        host: Users' requests that the rollout makes way for, and the place of its health.
    """

    def __init__(self, engine: Engine, session: NodeSession, *, slots: int, weights: WeightsVia, host: Host) -> None:
        self._engine = engine
        self._first = session
        self._slots = slots
        self._host = host
        self._receivers = Receivers(engine, session.run, weights)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "RolloutNode":
        first, config, host = self._first, self._first.config, self._host
        node, run_id = first.who.node, first.welcome.run_id
        async with AsyncExitStack() as stack:
            self._models = await stack.enter_async_context(models_of_rollout(config, first.models_folder))
            opening = open_episodes(
                config, self._engine, run_id=run_id, node=node, slots=self._slots, variables=self._models.variables
            )
            episodes = await await_with_beats(first.link, first.welcome.beat_s, stack.enter_async_context(opening))
            self._generations = Generations(
                self._engine,
                node,
                users=host.users,
                on_failure=host.failed,
                episodes=episodes,
                hold="turn" if config.schedule.partial_rollout == "turn" else "trajectory",
            )
            stack.push_async_callback(self._generations.aclose)
            stack.callback(self._receivers.close)
            self._generations.watch_users()
            host.rolls_out(self._generations)
            stack.callback(host.rolls_out, None)
            self._sleeper = Sleeper(self._engine, self._generations)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def hello(self, who: Identity) -> Hello:
        """The trajectories that a new session begins with."""
        held = self._generations.begin_session()
        return replace(hello(who), held=held, policy_version=self._generations.policy_version)

    async def take_part(self, session: NodeSession) -> None:
        """Sample until the broker is lost, the run is over, or this node has drained. Raises `LinkError`."""
        host, config, via = self._host, session.config, self._receivers.via
        host.enter("rolling_out" if self._generations.policy_version >= 0 else "joining")
        if self._sleeper.is_asleep:
            await session.take_turn()
            await self._sleeper.wake()
        layout = Layout(self._engine.specs(), config.weights.bucket_bytes)
        receiver = await self._receivers.open(
            layout, config.weights, who=session.who, link=session.link, welcome=session.welcome
        )
        options = RolloutOptions(
            slots=self._slots,
            group_size=config.trajectories_per_group,
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
            session.connection(),
            options,
            receiver=receiver,
            generations=self._generations,
            sleeper=self._sleeper if config.rollout.colocated else None,
            on_drain=session.stopping.set,
            on_live=lambda: host.enter("rolling_out"),
            models=self._models.uses,
        )
        try:
            async with aclosing(receiver):
                await session.serve(actor, drain=actor.drain, drain_s=config.rollout.drain_s, limits=config.broker)
        except LinkError as lost:
            host.failed(lost)
            host.enter("waiting_for_broker")
            if config.rollout.colocated:
                await self._sleeper.sleep()  # A trainer may load before this node is heard again.
            raise


async def run_rollout(
    node: RunNode, stopping: StopEvent, *, weights: WeightsVia = "collective", may_fetch: bool = True
) -> None:
    """
    Generate trajectories until the run is over, or until ``stopping`` is set and the rollout has drained.

    Args:
        may_fetch: Fetch a model that this machine lacks from the broker's.

    Raises:
        ConfigError: The engine is not installed, or needs more devices than this process may use; or this machine has
            another model than the broker's.
        LinkError, EngineDied: The rollout could not start, or the broker is gone.
    """
    async with AsyncExitStack() as stack, node.part_of_run(stopping):

        async def opened(session: NodeSession) -> tuple[Engine, int]:
            engine = await _load(session, may_fetch=may_fetch)
            stack.push_async_callback(engine.aclose)
            return engine, session.config.rollout.slots

        await roll_out(node, opened, weights=weights, host=Host(grace_s=0.0))


async def roll_out(
    node: RunNode,
    opened: Callable[[NodeSession], Awaitable[tuple[Engine, int]]],
    *,
    weights: WeightsVia,
    host: Host,
) -> None:
    """
    Sample in one session after another, around one engine.

    ``opened`` gives the engine and its slots, once the broker has welcomed the node. A broker that is lost before
    sampling can begin ends the node: what was loaded for it is not loaded a second time.
    """
    rollout: RolloutNode | None = None
    async with AsyncExitStack() as stack:
        async for session in node.sessions():
            if rollout is None:
                engine, slots = await opened(session)
                rollout = RolloutNode(engine, session, slots=slots, weights=weights, host=host)
                await stack.enter_async_context(rollout)
                node.make_hello = rollout.hello
            async with session:
                await rollout.take_part(session)


async def _load(session: NodeSession, *, may_fetch: bool) -> Engine:
    """Load the engine of the run, in this node's turn if devices are shared."""
    fetching = local_copies(session.welcome, session.run, session.who, may_fetch=may_fetch)
    session.copies = await session.wait_for(fetching)

    def load() -> Engine:
        require_same_models(session.welcome)
        return load_engine(session.config)

    if session.config.rollout.colocated:
        await session.take_turn()
    return await session.load(load)
