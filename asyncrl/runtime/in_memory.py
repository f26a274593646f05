"""
A whole run as tasks of one process, connected by links in memory: the same actors as in processes, without sockets.

    async with MemoryRun(config) as run:        broker ── spool
        run.roll_out(engine)                    + a rollout around an engine
        run.reward(pool)                        + a reward node, whose verifiers are processes
        run.train(learner, tokenizer)           + the trainer, which publishes weights to the rollouts
        await run.finished()
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

from msgspec.structs import replace
from torch import Tensor

from asyncrl.broker.actor import BrokerActor
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.scheduler import Scheduler
from asyncrl.config.config import Config
from asyncrl.config.run_file import to_toml, with_absolute_paths
from asyncrl.data.prompts import held_out_stream, train_stream
from asyncrl.engine import Engine
from asyncrl.errors import TransferError
from asyncrl.messages.session import StoreValue
from asyncrl.messages.spool import SpoolAddress
from asyncrl.messages.weights import Abort, Transfer, Transferred
from asyncrl.messages.words import Role
from asyncrl.records.run_directory import RunDirectory
from asyncrl.reward.actor import RewardActor, most_open
from asyncrl.reward.workers.pool import WorkerPool
from asyncrl.rollout.actor import RolloutActor, RolloutOptions
from asyncrl.runtime.broker import record_config, require_same_data
from asyncrl.runtime.sessions import Actor, serve
from asyncrl.spool.actor import SpoolActor
from asyncrl.spool.segments import Segments
from asyncrl.trainer.actor import TrainerActor
from asyncrl.trainer.checkpoints.checkpoint import Tokenizer
from asyncrl.trainer.trainable import Trainable
from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.wire.handshake import Connection, hello, identity, shake_hands
from asyncrl.wire.memory import MemoryHub
from asyncrl.wire.spools import SpoolLinks


class MemoryRun:
    """
    The broker and the spool of a new run; other roles are added to them. All ends with the context.

    Args:
        name: Name of the run directory, unless ``run.name`` is set.
    """

    def __init__(self, config: Config, name: str = "run") -> None:
        self.config = config
        self.directory = RunDirectory.create(Path(config.run.dir), config.run.name or name)
        self._control, self._payloads = MemoryHub(), MemoryHub()
        self._publisher = MemoryPublisher()
        self._layout_hash = ""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "MemoryRun":
        config, directory, payloads = self.config, self.directory, self._payloads
        async with AsyncExitStack() as stack:
            ledger = stack.enter_context(closing(Ledger(directory.ledger)))
            segments = Segments(directory.spool, segment_bytes=config.broker.segment_bytes)
            stack.enter_context(closing(segments))
            stack.push_async_callback(payloads.aclose)
            train = train_stream(config.data, config.run.seed)
            held_out = held_out_stream(config.data, config.evaluation.max_prompts)
            directory.write_config(to_toml(with_absolute_paths(config, Path.cwd())))
            record_config(directory, ledger, config)
            require_same_data(config.data, ledger, {"train": train, "held_out": held_out})
            ledger.append([ledger.started()])
            prompts = [draw.prompt for draw in held_out.since(0)]
            scheduler = Scheduler(config, train, prompts, ledger.broker_term)
            broker = BrokerActor(
                config,
                scheduler,
                self._control,
                ledger,
                directory,
                connect=lambda _: payloads.connect("broker"),
                broker_term=ledger.broker_term,
                run_id=ledger.run_id,
            )
            self._run_id = ledger.run_id
            self._tasks = await stack.enter_async_context(_tasks())
            self._broker = self._tasks.create_task(broker.run())
            connection = await self._join("spool", SpoolAddress("spool", payloads.address))
            self._tasks.create_task(SpoolActor("spool", segments, payloads, connection.broker).run())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> bool | None:
        return await self._stack.__aexit__(*error)  # type: ignore[arg-type]

    async def finished(self) -> None:
        """Wait until the broker has ended the run and told every node to stop."""
        await self._broker

    async def roll_out(self, engine: Engine, specs: list[TensorSpec]) -> None:
        """Add a rollout. ``engine`` stays open; ``specs`` are its tensors, in the order of `Engine`'s publications."""
        layout = Layout(specs, self.config.weights.bucket_bytes)
        self._layout_hash = layout.hash
        slots, group_size = self.config.rollout.slots, self.config.schedule.group_size
        options = RolloutOptions(slots=slots, group_size=group_size, layout_hash=layout.hash)
        connection = await self._join("rollout")
        receiver = MemoryReceiver(self._publisher)
        self._play(RolloutActor(engine, connection, options, receiver=receiver), connection)

    async def reward(self, pool: WorkerPool) -> None:
        """Add a reward node. ``pool`` has been started, and stays open."""
        connection = await self._join("reward")
        actor = RewardActor(pool=pool, connection=connection, max_open=most_open(self.config))
        self._play(actor, connection)

    async def train(self, learner: Trainable, tokenizer: Tokenizer) -> None:
        """Add the trainer."""
        connection = await self._join("trainer")
        actor = TrainerActor(
            self.config,
            learner,
            self._publisher,
            connection,
            tokenizer=tokenizer,
            layout_hash=self._layout_hash,
            checkpoints=self.directory.checkpoints,
            run_id=self._run_id,
        )
        self._play(actor, connection)

    async def _join(self, role: Role, spool: SpoolAddress | None = None) -> Connection:
        who = identity(role, role)
        link = self._control.connect(who.peer)
        welcome = await shake_hands(link, who, lambda who: replace(hello(who), spool=spool))
        return Connection(who, link, SpoolLinks(lambda _: self._payloads.connect(who.peer), welcome.spools))

    def _play(self, actor: Actor, connection: Connection) -> None:
        beat_s = self.config.broker.beat_s
        self._tasks.create_task(serve(actor, connection.broker, beat_s=beat_s, stopping=asyncio.Event()))


@asynccontextmanager
async def _tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group, whose first error is raised alone."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


# ── weights ────────────────────────────────────────────────────────────────────────────────────
# Weight transfer inside one process: rollouts receive a reference to the trainer's copy.
#
#     MemoryPublisher.stage(v) ─▶ copy of the tensors ─▶ MemoryReceiver.transfer(v) ─▶ weights()

KEPT_VERSIONS = 2
"""The newest version, and the version before it, which may still be in transfer."""


class MemoryPublisher:
    """Trainer's side; it has the methods of `asyncrl.weights.publish.Publisher` that a `TrainerActor` calls."""

    num_buckets = 0

    def __init__(self) -> None:
        self._versions: dict[int, dict[str, Tensor]] = {}

    def stage(self, policy_version: int, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Copy a version of the model, and drop the oldest kept version."""
        copies = {name: tensor.detach().clone() for name, tensor in named_tensors}
        self._versions = dict([*self._versions.items(), (policy_version, copies)][-KEPT_VERSIONS:])

    def tensors(self, policy_version: int) -> dict[str, Tensor]:
        """Read-only tensors of a version, by name; raises `TransferError` if it is not, or no longer, staged."""
        if policy_version not in self._versions:
            raise TransferError(f"version {policy_version} is not staged; staged are {[*self._versions]}")
        return self._versions[policy_version]

    async def transfer(self, transfer: Transfer) -> Transferred:
        """Report the transfer of a version, which receivers read; raises `TransferError` if it is not staged."""
        num_bytes = sum(tensor.nbytes for tensor in self.tensors(transfer.policy_version).values())
        return Transferred(transfer.transfer_group, transfer.policy_version, 0.0, num_bytes)

    def deliver(self, value: StoreValue) -> None:
        """Ignore a rendezvous: there is no process group."""

    def abort(self, abort: Abort) -> None:
        """Ignore it: a transfer takes no time."""


class MemoryReceiver:
    """Rollout's side: a `WeightReceiver` of a publisher in the same process."""

    def __init__(self, publisher: MemoryPublisher) -> None:
        self._publisher = publisher
        self._tensors: dict[str, Tensor] = {}

    async def transfer(self, transfer: Transfer) -> float:
        """Take a reference to a staged version, in 0 seconds; raises `TransferError` if it is not staged."""
        self._tensors = self._publisher.tensors(transfer.policy_version)
        return 0.0

    def weights(self) -> dict[str, Tensor]:
        """The tensors of the last transfer, by name; do not modify them."""
        return self._tensors

    def deliver(self, value: StoreValue) -> None:
        """Ignore a rendezvous: there is no process group."""

    def abort(self, abort: Abort) -> None:
        """Ignore it: a transfer takes no time."""

    async def aclose(self) -> None:
        self._tensors = {}
